"""Symbolic values: what the evaluator knows of the Python objects of a frame."""
