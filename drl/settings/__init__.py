"""What a run is told: the experiment's configs, presets and their records."""
