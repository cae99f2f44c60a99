"""The folder of a run: what is in it, who writes it, who may continue it."""
