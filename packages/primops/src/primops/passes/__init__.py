"""Passes over Prim graphs: `Graph -> Graph`, each a frozen dataclass with its options."""
