"""The folder of a run on disk: its record and settings, checkpoints, result; who writes it and who may continue it."""
