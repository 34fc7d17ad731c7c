"""What Python's syntax means on values: attribute lookup, operators, methods, side effects."""
