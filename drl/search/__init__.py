"""Looking for good settings: studies, spaces, workers, reports."""
