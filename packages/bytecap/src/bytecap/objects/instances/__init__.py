"""Instances of Python classes, modules and exceptions among them, and what is written to them."""
