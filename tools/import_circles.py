"""Refuse knots of imports inside a package.

    python tools/import_circles.py

In each package a circle of modules that import each other has at most 4 files, imports inside functions counted. Of the
latter bytecap has fewer than 20, and its rooms import downward. What stands under TYPE_CHECKING is for annotations, and
free. Exit code 1 if there is any fault.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Container, Iterator
from pathlib import Path

from private_names import run_time_nodes

ROOT = Path(__file__).resolve().parent.parent
LARGEST_CIRCLE = 4
INSIDE_FUNCTIONS = {"bytecap": 19}
ROOMS = {
    "bytecap": (
        "driver", "evaluator", "replacement", "lookasides", "nodes", "semantics", "objects", "graph", "guards",
        "breaks", "bytecode", "hook",
    ),
}  # fmt: skip
"""Of a package the rooms, in an order in which each imports those behind it alone."""


def sources(package: Path) -> dict[str, Path]:
    """The modules of a package by name."""
    files = {".".join(file.relative_to(package.parent).with_suffix("").parts): file for file in package.rglob("*.py")}
    return {name.removesuffix(".__init__"): file for name, file in files.items()}


def imported(node: ast.AST, modules: Container[str]) -> set[str]:
    """Which of a package's modules a statement imports (absolutely, as this project does).

    >>> imported(ast.parse("from a.b import c, d").body[0], {"a", "a.b", "a.b.c"}) == {"a.b", "a.b.c"}
    True
    """
    match node:
        case ast.Import(names=names):
            found = [name.name for name in names]
        case ast.ImportFrom(module=str(origin), names=names, level=0):
            found = [f"{origin}.{name.name}" for name in names]
        case _:
            return set()
    for place, name in enumerate(found):
        while name and name not in modules:
            name = name.rpartition(".")[0]
        found[place] = name
    return {name for name in found if "." in name}


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """All modules that importing one imports.

    >>> sorted(reached({"a": {"b"}, "b": {"a", "c"}, "c": set()}, "a"))
    ['a', 'b', 'c']
    """
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph[waiting.pop()] - found:
            found.add(name)
            waiting.append(name)
    return found


def largest_circle(graph: dict[str, set[str]]) -> set[str]:
    """The most modules of which each reaches every other.

    >>> sorted(largest_circle({"a": {"b"}, "b": {"a", "c"}, "c": set()}))
    ['a', 'b']
    """
    reach = {name: reached(graph, name) for name in graph}
    circles = ({other for other in reach[name] if name in reach[other]} for name in graph)
    return max(circles, key=len, default=set())


def faults(package: Path) -> Iterator[str]:
    """A sentence for each fault of a package."""
    modules = sources(package)
    trees = {name: ast.parse(file.read_text(), str(file)) for name, file in modules.items()}
    graph = {
        name: set().union(*(imported(node, modules) for node in run_time_nodes(tree))) - {name}
        for name, tree in trees.items()
    }
    circle = largest_circle(graph)
    if len(circle) > LARGEST_CIRCLE:
        yield f"{package.name}: {len(circle)} modules import each other: {', '.join(sorted(circle))}"
    functions = [node for tree in trees.values() for node in run_time_nodes(tree) if isinstance(node, ast.FunctionDef)]
    inside = len({node for function in functions for node in run_time_nodes(function) if imported(node, modules)})
    if inside > INSIDE_FUNCTIONS.get(package.name, inside):
        yield f"{package.name}: {inside} imports inside functions, more than {INSIDE_FUNCTIONS[package.name]}"
    order = {f"{package.name}.{room}": depth for depth, room in enumerate(ROOMS.get(package.name, ()))}
    for name, others in graph.items():
        for other in sorted(others):
            first, second = (order.get(".".join(each.split(".")[:2])) for each in (name, other))
            if first is not None and second is not None and second < first:
                yield f"{name} imports {other}, which is above it"


def main() -> int:
    packages = [path for path in sorted((ROOT / "packages").glob("*/src/*")) if (path / "__init__.py").exists()]
    bad = [fault for package in packages for fault in faults(package)]
    for fault in bad:
        print(fault, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
