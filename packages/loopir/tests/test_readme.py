"""The README lists every pass and every error; SPEC.md every op."""

from __future__ import annotations

from pathlib import Path

from loopir import errors
from loopir.pipeline import KERNEL_PASSES, PASSES
from stagewire.loop_ops import VOCABULARY
from stagewire.vocabulary_pages import page

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_page_of_the_loop_ops_is_current() -> None:
    spec = Path(__file__).parents[1] / "SPEC.md"
    assert spec.read_text() == page(VOCABULARY), "write it again: python -m stagewire ops loop > SPEC.md"


def test_every_pass_stands_there_in_order() -> None:
    order = list(dict.fromkeys(p.name for p in (*PASSES, *KERNEL_PASSES)))
    places = [README.index(f"| `{name}` |") for name in order]
    assert places == sorted(places)


def test_every_error_code_stands_there() -> None:
    codes = [getattr(kind, "code", "") for kind in vars(errors).values()]
    assert all(code in README for code in codes if code.startswith("LI"))
