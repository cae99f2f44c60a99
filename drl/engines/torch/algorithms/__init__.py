"""One algorithm, one file: its pure loss and its class. The configs are in `core/algorithms/*_record.py`."""
