"""torch's operator database (OpInfo) against the whole pipeline: see `__main__`."""
