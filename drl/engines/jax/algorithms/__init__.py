"""One algorithm, one file: its pure loss, its pure step, its class. The configs are in `core/configs.py`."""
