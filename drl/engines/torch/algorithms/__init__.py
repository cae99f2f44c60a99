"""One algorithm, one file: its config, its pure loss, its class."""
