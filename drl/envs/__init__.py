"""Environments: made, stepped and described. Nothing here learns."""
