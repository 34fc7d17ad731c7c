"""Runs a captured program on types, with torch's autograd, and records functional ATen ops."""
