"""Trained agents outside of drl: files for other runtimes, and an HTTP endpoint."""
