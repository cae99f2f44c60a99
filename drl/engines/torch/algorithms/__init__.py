"""One algorithm, one file: its pure loss and its class. The configs are in `algorithms`."""
