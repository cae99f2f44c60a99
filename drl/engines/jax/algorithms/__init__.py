"""One algorithm, one file: its pure loss, pure step and class. The configs are in `algorithms`."""
