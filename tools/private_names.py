"""Refuse names of torch beyond its documented interface outside of the modules that state them.

    python tools/private_names.py [DIRECTORY ...]

Walks the syntax trees of packages/*/src. A dotted name under torch with a part that begins with one underscore
(`torch._C._set_grad_enabled`) may stand only in a package's `torch_capabilities.py`, as data: there it may be missing.
Operators (`torch.ops`), annotations' imports under TYPE_CHECKING and the packages' `testing` are free. Comparisons with
torch's version are refused everywhere. Exit code 1 if there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from forbidden_imports import dotted

STATED = "torch_capabilities.py"
LIVE = ("torch.autograd.forward_ad._current_level",)
"""Variables of torch, which are read anew each time; `torch_capabilities` states that they are there."""


def is_private(name: str) -> bool:
    """Whether some part of a dotted name of torch is private.

    >>> is_private("torch._C._nn"), is_private("torch.Tensor.__add__"), is_private("torch.ops.aten._to_copy")
    (True, False, False)
    """
    first, *parts = name.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return first == "torch" and hidden and not name.startswith("torch.ops.") and name not in LIVE


def aliases(nodes: list[ast.AST]) -> dict[str, str]:
    """Local names of torch's modules and of what is imported from them."""
    found: dict[str, str] = {}
    for node in nodes:
        match node:
            case ast.Import(names=names):
                for one in names:
                    found[one.asname or one.name.split(".")[0]] = one.name if one.asname else one.name.split(".")[0]
            case ast.ImportFrom(module=str(module), names=names, level=0) if module.split(".")[0] == "torch":
                found.update((one.asname or one.name, f"{module}.{one.name}") for one in names)
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Attribute() as value):
                base, _, rest = dotted(value).partition(".")
                if found.get(base, "").startswith("torch") and rest:
                    found.setdefault(target, f"{found[base]}.{rest}")
    return {local: name for local, name in found.items() if name.split(".")[0] == "torch"}


def faults(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, name) of every private name and of every comparison with torch's version."""
    nodes = list(_nodes(tree))
    known = aliases(nodes)
    found: set[tuple[int, str]] = set()
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found.update(
                    (node.lineno, f"{module}.{one.name}") for one in names if is_private(f"{module}.{one.name}")
                )
            case ast.Attribute():
                base, _, rest = dotted(node).partition(".")
                name = f"{known[base]}.{rest}" if base in known else ""
                if is_private(name):
                    found.add((node.lineno, name))
            case ast.Compare():
                inside = (dotted(one) for one in ast.walk(node) if isinstance(one, ast.Attribute))
                found.update((node.lineno, name) for name in inside if name == "torch.__version__")
    lines = {line: max((name for at, name in found if at == line), key=len) for line, _ in found}
    return sorted(lines.items())


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from _nodes(node)


def main(directories: list[str]) -> int:
    root = Path(__file__).resolve().parent.parent
    places = [Path(d) for d in directories] or sorted((root / "packages").glob("*/src"))
    bad = 0
    for place in places:
        for file in sorted(place.rglob("*.py")):
            if file.name == STATED or "testing" in file.parts:
                continue
            for line, name in faults(ast.parse(file.read_text(), str(file))):
                print(
                    f"{file}:{line}: {name} belongs into {STATED}, for releases of torch may lack it", file=sys.stderr
                )
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
