"""Checks and oracles, for our tests and yours."""
