"""Public test tools: an interpreter of `Loop` in numpy, hypothesis strategies for kernels, comparisons."""
