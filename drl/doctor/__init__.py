"""What is likely wrong with an environment or a run, and what to change."""
