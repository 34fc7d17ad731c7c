"""The graph under construction: inputs, nodes, and the symbols of its sizes."""
