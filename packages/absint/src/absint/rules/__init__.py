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

_MODULES = (
    elementwise, reduce, matmul, linalg, conv, pool, norm, loss, index, layers, view, movement, factory, fft, foreach,
)  # fmt: skip
FAMILIES: dict[str, RuleTable] = {module.__name__.rpartition(".")[2]: module.TABLE for module in _MODULES}
RULES = RuleTable()
for _table in FAMILIES.values():
    RULES.rows(_table)
