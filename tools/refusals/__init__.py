"""Whether what eager refuses is refused: see `__main__`."""
