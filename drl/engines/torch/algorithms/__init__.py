"""One algorithm, one file: its pure loss, its class. The configs, which all engines share, are in `core/configs.py`."""
