"""The README's programs run, and print what it says they print."""

import contextlib
import io
import re
from pathlib import Path

import torch

README = Path(__file__).parent.parent / "README.md"


def test_programs_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names = {"torch": torch}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            if "TABLE." not in block:
                exec(compile(block, str(README), "exec"), names)
    said = re.findall(r"print\(.*#\s*(.*)", "\n".join(blocks))
    assert said
    assert printed.getvalue().split("\n")[: len(said)] == said
