"""Everything that touches torch: loading machine code and running wrapper instructions."""
