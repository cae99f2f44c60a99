"""Acting with plain arrays: networks, distributions, and agents that need no framework."""
