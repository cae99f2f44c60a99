"""Checks and oracles for our tests and for yours."""
