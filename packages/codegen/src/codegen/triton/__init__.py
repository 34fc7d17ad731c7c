"""Triton sources from loop kernels, and machine code of them without a GPU."""
