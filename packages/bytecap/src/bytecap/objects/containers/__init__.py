"""Lists, tuples, dicts, sets and deques."""
