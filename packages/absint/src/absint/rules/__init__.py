"""Result-type rules of ATen overloads, as pure functions of types, one family a module."""

from __future__ import annotations

from absint.rules import (
    activation,
    attention,
    conv,
    copies,
    elementwise,
    factory,
    fft,
    foreach,
    index,
    linalg,
    loss,
    matmul,
    movement,
    norm,
    pool,
    recurrent,
    reduce,
    rng,
    view,
)
from absint.rules.table import Rule, RuleTable

__all__ = ["FAMILIES", "RULES", "Rule", "RuleTable"]

FAMILIES: dict[str, RuleTable] = {
    "elementwise": elementwise.TABLE,
    "activation": activation.TABLE,
    "reduce": reduce.TABLE,
    "matmul": matmul.TABLE,
    "linalg": linalg.TABLE,
    "conv": conv.TABLE,
    "pool": pool.TABLE,
    "norm": norm.TABLE,
    "loss": loss.TABLE,
    "attention": attention.TABLE,
    "index": index.TABLE,
    "view": view.TABLE,
    "movement": movement.TABLE,
    "copies": copies.TABLE,
    "factory": factory.TABLE,
    "rng": rng.TABLE,
    "recurrent": recurrent.TABLE,
    "fft": fft.TABLE,
    "foreach": foreach.TABLE,
}


RULES = RuleTable()
for _table in FAMILIES.values():
    RULES.rows(_table)
