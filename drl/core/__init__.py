"""The contracts every other room relies on. NumPy and the standard library only."""
