"""Environment, rollout and update in one compiled program."""
