"""For tests of stages: `conformance` (does a stage keep the meaning), `programs` (what it is tried on)."""
