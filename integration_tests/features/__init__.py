"""What programs of users do, a small program each: tried by a test, and by `tools/features.py` beside torch.compile."""
