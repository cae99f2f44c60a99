"""Trackers: where logs go. Nothing heavy is imported until it is used."""
