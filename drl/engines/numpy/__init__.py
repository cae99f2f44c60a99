"""Acting in NumPy: networks, distributions, and agents without a framework."""
