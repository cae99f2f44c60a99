"""A trained agent: load it, evaluate it, watch it, share it."""
