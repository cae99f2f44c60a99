"""Where logs go. Nothing heavy is imported until it is used."""
