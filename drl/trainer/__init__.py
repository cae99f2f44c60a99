"""The teacher: a generator of learning steps."""
