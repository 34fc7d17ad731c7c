"""The examples of the README run as printed."""

from __future__ import annotations

import doctest
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_examples_of_the_readme() -> None:
    text = "\n".join(line for line in README.read_text().splitlines() if not line.startswith("```"))
    space: dict[str, object] = {"__name__": "readme"}
    example = doctest.DocTestParser().get_doctest(text, space, "README.md", str(README), 0)
    runner = doctest.DocTestRunner(verbose=False)
    results = runner.run(example)
    assert results.failed == 0
    assert results.attempted > 10
