"""What one optimized callable does: captures, entries, limits, plain runs."""
