"""Result-type rules of ATen overloads, as pure functions of types, one family a module."""

from __future__ import annotations

from absint.rules import (
    conv,
    elementwise,
    factory,
    fft,
    foreach,
    index,
    layers,
    linalg,
    loss,
    matmul,
    movement,
    norm,
    pool,
    reduce,
    view,
)
from absint.rules.table import Rule, RuleTable

__all__ = ["FAMILIES", "RULES", "Rule", "RuleTable"]

FAMILIES: dict[str, RuleTable] = {
    "elementwise": elementwise.TABLE,
    "reduce": reduce.TABLE,
    "matmul": matmul.TABLE,
    "linalg": linalg.TABLE,
    "conv": conv.TABLE,
    "pool": pool.TABLE,
    "norm": norm.TABLE,
    "loss": loss.TABLE,
    "index": index.TABLE,
    "layers": layers.TABLE,
    "view": view.TABLE,
    "movement": movement.TABLE,
    "factory": factory.TABLE,
    "fft": fft.TABLE,
    "foreach": foreach.TABLE,
}


RULES = RuleTable()
for _table in FAMILIES.values():
    RULES.rows(_table)
