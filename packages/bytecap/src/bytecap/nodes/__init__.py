"""Calls of torch as nodes of the graph."""
