"""The schedule around a trainer: stages, run folders, evaluation, presets."""
