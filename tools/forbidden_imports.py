"""Refuse the parts of torch that this project re-implements.

    python tools/forbidden_imports.py [DIRECTORY ...]

Walks the syntax trees of packages/*/src (tests, benchmarks and the adapters to foreign back ends are free) and reports
every import or attribute access of a forbidden part, with file and line. Exit code 1 if there is any.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

FORBIDDEN = (
    "torch._dynamo",
    "torch._C._dynamo",
    "torch._inductor",
    "torch._functorch",
    "torch._decomp",
    "torch._refs",
    "torch._prims",
    "torch._prims_common",
    "torch._subclasses",
    "torch.fx.experimental.proxy_tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch.export",
    "torch.compile",
)
ADAPTERS = ("stagefold/adapters/",)


def is_forbidden(name: str) -> bool:
    """True for a forbidden part and everything below it.

    >>> is_forbidden("torch._dynamo.eval_frame"), is_forbidden("torch.compiler")
    (True, False)
    """
    return any(name == part or name.startswith(part + ".") for part in FORBIDDEN)


def dotted(node: ast.expr) -> str:
    """ "torch.a.b" for the attribute chain, "" for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            base = dotted(value)
            return f"{base}.{attr}" if base else ""
        case _:
            return ""


def faults(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, name) of every forbidden use in a module, once for each line and part."""
    found: set[tuple[int, str]] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found.update((node.lineno, alias.name) for alias in names if is_forbidden(alias.name))
            case ast.ImportFrom(module=str(module), names=names, level=0):
                full = [module, *(f"{module}.{alias.name}" for alias in names)]
                found.update((node.lineno, name) for name in full if is_forbidden(name))
            case ast.Attribute():
                name = dotted(node)
                if is_forbidden(name) and name in FORBIDDEN:
                    found.add((node.lineno, name))
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                if is_forbidden(name):
                    found.add((node.lineno, name))
    return sorted(found)


def main(directories: list[str]) -> int:
    root = Path(__file__).resolve().parent.parent
    places = [Path(d) for d in directories] or sorted((root / "packages").glob("*/src"))
    bad = 0
    for place in places:
        for file in sorted(place.rglob("*.py")):
            if any(part in file.as_posix() for part in ADAPTERS):
                continue
            for line, name in faults(ast.parse(file.read_text(), str(file))):
                print(f"{file}:{line}: {name} is a part of torch that this project re-implements", file=sys.stderr)
                bad += 1
    if bad:
        print(f"{bad} forbidden uses", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
