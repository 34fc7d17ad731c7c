"""Public test material of loopir: sample documents, strategies, numpy meanings."""
