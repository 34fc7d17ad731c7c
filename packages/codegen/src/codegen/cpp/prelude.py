"""The math prelude, cut to what a source uses: gcc's time follows the text it reads."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

_NAME = re.compile(r"\bsf_\w+")


@lru_cache(maxsize=1)
def _blocks() -> tuple[str, dict[str, str]]:
    """The head (types, macros), and each definition by the name that it defines; blank lines separate blocks."""
    text = files("codegen.cpp").joinpath("prelude.h").read_text()
    head: list[str] = []
    blocks: dict[str, str] = {}
    for block in text.split("\n\n"):
        block = block.strip("\n")
        names = _NAME.findall(block)
        if names:
            blocks[names[0]] = block
        elif not block.startswith("//"):
            head.append(block)
    return "\n\n".join(head), blocks


def prelude(body: str) -> str:
    """The head and the definitions that `body` needs, directly or not, in the order of the file."""
    head, blocks = _blocks()
    wanted: set[str] = set()
    pending = [name for name in set(_NAME.findall(body)) if name in blocks]
    while pending:
        name = pending.pop()
        if name in wanted:
            continue
        wanted.add(name)
        pending.extend(used for used in set(_NAME.findall(blocks[name])) if used in blocks and used not in wanted)
    return "\n\n".join([head, *(text for name, text in blocks.items() if name in wanted)])
