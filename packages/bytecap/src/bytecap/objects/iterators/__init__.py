"""Iterators, each with the state of CPython's own object."""
