"""The trainer: a generator of learning steps."""
