"""Make, step and describe environments."""
