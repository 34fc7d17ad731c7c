"""The README lists every op and every pass that there is."""

from __future__ import annotations

from pathlib import Path

from loopir import errors
from loopir.ops import OPS
from loopir.pipeline import KERNEL_PASSES, PASSES

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_every_op_stands_there_with_its_meaning() -> None:
    for op in OPS.values():
        signature = f"`{op.name}({', '.join('abcde'[: op.arity])})`"
        assert f"| {signature} | {op.result} | {op.meaning.replace('|', chr(92) + '|')} |" in README


def test_every_pass_stands_there_in_order() -> None:
    order = list(dict.fromkeys(p.name for p in (*PASSES, *KERNEL_PASSES)))
    places = [README.index(f"| `{name}` |") for name in order]
    assert places == sorted(places)


def test_every_error_code_stands_there() -> None:
    codes = [getattr(kind, "code", "") for kind in vars(errors).values()]
    assert all(code in README for code in codes if code.startswith("LI"))
