"""Public test tools: the meaning of `Loop` in plain torch, hypothesis strategies, comparisons."""
