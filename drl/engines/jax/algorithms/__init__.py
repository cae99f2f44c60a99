"""One algorithm, one file: its pure loss, its pure step, its class. The configs are in `core/algorithms/*_record.py`."""
