"""Tensors and NumPy arrays, and what captured code says of them."""
