"""Trained agents outside of the workshop: as files for other runtimes, and behind an HTTP endpoint."""
