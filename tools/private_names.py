"""Refuse names beyond an interface: torch's, and those of this project's packages.

    python tools/private_names.py [DIRECTORY ...]

Walks the syntax trees of packages/*/src. A dotted name under torch with a part that begins with one underscore
(`torch._C._set_grad_enabled`) may stand only in a package's `torch_capabilities.py`, as data: there it may be missing.
Operators (`torch.ops`), annotations' imports under TYPE_CHECKING and the packages' `testing` are free. Comparisons with
torch's version are refused everywhere.

The umbrella (packages/stagefold) uses the other packages by their public names: what a package's `__init__` lists in
`__all__`, and the modules that its README lists under "Public modules". Each name of an `__all__` has a docstring where
it is defined. Exit code 1 if there is any fault.
"""

from __future__ import annotations

import ast
import re
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
    nodes = list(run_time_nodes(tree))
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


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from run_time_nodes(node)


UMBRELLA = "stagefold"


class Packages:
    """What the packages below a directory offer: `names` of each (its `__all__`), and public `modules`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: dict[str, dict[str, str]] = {}
        self.modules: set[str] = set()
        for file in sorted(directory.glob("*/src/*/__init__.py")):
            self.names[file.parent.name] = exported(ast.parse(file.read_text()))
            readme = file.parents[2] / "README.md"
            self.modules.update(listed(readme.read_text() if readme.exists() else ""))

    def is_public(self, module: str, name: str) -> bool:
        """Whether others may write `from module import name`."""
        return (
            module.partition(".")[0] not in self.names
            or module in self.modules
            or f"{module}.{name}" in self.modules
            or name in self.names.get(module, ())
        )

    def leaks(self, tree: ast.AST) -> list[tuple[int, str]]:
        """(line, name) of what a module of the umbrella imports of the inside of another package."""
        found = []
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    pairs = [(one.name, "") for one in names if "." in one.name]
                case ast.ImportFrom(module=str(module), names=names, level=0):
                    pairs = [(module, one.name) for one in names]
                case _:
                    continue
            inner = [(module, name) for module, name in pairs if module.partition(".")[0] != UMBRELLA]
            found += [(node.lineno, f"{m}.{n}".strip(".")) for m, n in inner if not self.is_public(m, n)]
        return found

    def undocumented(self) -> list[str]:
        """Public names without a docstring where they are defined, and public modules without one."""
        bad = [
            f"{package}.{name}"
            for package, names in self.names.items()
            for name, module in names.items()
            if not self._is_documented(module, name)
        ]
        return bad + [module for module in sorted(self.modules) if not ast.get_docstring(self._tree(module))]

    def _tree(self, module: str) -> ast.Module:
        path = self.directory / module.partition(".")[0] / "src" / module.replace(".", "/")
        return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())

    def _is_documented(self, module: str, name: str) -> bool:
        tree = self._tree(module)
        if module.endswith(f".{name}"):
            return bool(ast.get_docstring(tree))
        for statement, after in zip(tree.body, [*tree.body[1:], None], strict=True):
            match statement:
                case ast.FunctionDef(name=found) | ast.ClassDef(name=found) if found == name:
                    if ast.get_docstring(statement):
                        return True
                case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)):
                    if found == name:
                        return isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                case ast.ImportFrom(module=str(source), names=names, level=0):
                    if source != module and any((one.asname or one.name) == name for one in names):
                        return self._is_documented(source, name)
        return False


def exported(tree: ast.Module) -> dict[str, str]:
    """The names of a package's `__all__`, each with the module that it is imported from.

    >>> exported(ast.parse("from a.b import c, d\\n__all__ = ['c']"))
    {'c': 'a.b'}
    """
    origin = {
        one.asname or one.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    }
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)):
                return {one.value: origin[one.value] for one in names}  # type: ignore[attr-defined]
    return {}


def listed(readme: str) -> list[str]:
    """The modules that a README lists under "Public modules".

    >>> listed("## Public modules\\n\\n* `a.b`: text of `c.d`\\n* `a.e`, `a.f`: more\\n\\n## Next\\n* `a.g`: no")
    ['a.b', 'a.e', 'a.f']
    """
    section = readme.partition("## Public modules\n")[2].partition("\n## ")[0]
    heads = [line.partition(":")[0] for line in section.splitlines() if line.startswith("* ")]
    return [name for head in heads for name in re.findall(r"`([\w.]+)`", head)]


def main(directories: list[str]) -> int:
    root = Path(__file__).resolve().parent.parent
    places = [Path(d) for d in directories] or sorted((root / "packages").glob("*/src"))
    packages = Packages(root / "packages")
    bad: list[str] = []
    for place in places:
        for file in sorted(place.rglob("*.py")):
            if file.name == STATED or "testing" in file.parts:
                continue
            tree = ast.parse(file.read_text(), str(file))
            bad += [
                f"{file}:{line}: {name} belongs into {STATED}, for releases of torch may lack it"
                for line, name in faults(tree)
            ]
            if UMBRELLA in file.parts:
                bad += [
                    f"{file}:{line}: {name} is not public: neither in `__all__` nor under Public modules of the README"
                    for line, name in packages.leaks(tree)
                ]
    bad += [f"{name} is public and has no docstring" for name in packages.undocumented()]
    for fault in bad:
        print(fault, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
