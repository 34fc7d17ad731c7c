"""Measuring eager, torch.compile and stagefold side by side: cases, workers, statistics and the page of results."""
