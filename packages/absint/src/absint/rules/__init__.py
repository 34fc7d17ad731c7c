"""Result-type rules of ATen overloads, as pure functions of types, one family a module."""

from __future__ import annotations

from absint.kernels import Question
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
from absint.rules.constraint import Constraint
from absint.rules.table import Rule, RuleTable

__all__ = ["CONSTRAINTS", "FAMILIES", "QUESTIONS", "RULES", "Rule", "RuleTable"]

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


def _merge(families: dict[str, RuleTable]) -> dict[str, Rule]:
    merged: dict[str, Rule] = {}
    for family, table in families.items():
        for name, rule in table.items():
            if name in merged:
                raise ValueError(f"{name} has a second rule in {family}")
            merged[name] = rule
    return merged


RULES: dict[str, Rule] = _merge(FAMILIES)
CONSTRAINTS: dict[str, tuple[Constraint, ...]] = {
    k: v for table in FAMILIES.values() for k, v in table.constraints.items()
}
"""What the rules demand, by overload."""
QUESTIONS: dict[str, Question] = {k: v for table in FAMILIES.values() for k, v in table.questions.items()}
"""How kernels are asked, by overload."""
