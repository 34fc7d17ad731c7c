"""The code of the tutorials runs, block by block, and prints what they say."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path

import pytest
import torch

TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"
BLOCKS = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)
"""A block of kind {.python} shows a file of examples/, which has tests of its own."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_tutorial(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STAGEFOLD_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    source = tmp_path / f"tutorial_{page.stem}.py"
    blocks = BLOCKS.findall(page.read_text())
    assert any(kind == "python" for kind, _ in blocks)
    code = ""
    for kind, text in blocks:
        if kind == "python":
            code += text
        elif kind == "text":
            code += f"\n__said__({text!r})\n"
    source.write_text(code)

    def said(expected: str) -> None:
        printed = capsys.readouterr().out
        assert doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS), printed

    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["__said__"] = said
    spec.loader.exec_module(module)
    torch.compiler.reset()
