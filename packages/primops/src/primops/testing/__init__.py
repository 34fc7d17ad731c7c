"""For tests of this and other stages: generated Grad graphs, comparison of meanings, torch's operator samples."""
