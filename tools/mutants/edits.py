"""Mutants: single edits of a function's syntax tree, found in the source of an area and named so that they last.

mutant ::= module ":" function ":" edit ":" number        # the number-th place of this edit in the function
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "packages"

AREAS = {
    "decompositions": ("primops/src/primops/decompositions/**/*.py",),
    "passes": ("*/src/*/passes/**/*.py",),
    "type rules": ("absint/src/absint/rules/**/*.py", "primops/src/primops/prims/**/*.py"),
    "lowerings": ("loopir/src/loopir/lowering/**/*.py", "loopir/src/loopir/builder.py"),
    "emission": ("codegen/src/codegen/cpp/[!c]*.py", "codegen/src/codegen/wrapper.py"),
    "guards": ("bytecap/src/bytecap/guards/[cgkln]*.py",),
}
"""Where mutants of an area are planted, under packages/."""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_NAMED = {
    "add": "sub", "sub": "add", "mul": "add", "div": "mul", "maximum": "minimum", "minimum": "maximum", "exp": "exp2",
    "sum": "amax", "amax": "amin", "lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq",
    "max": "min", "min": "max",
    "floor": "trunc", "sqrt": "abs", "log": "log2", "and_": "or_", "all": "any", "any": "all",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One edit: the file, the function (by qualified name) and the place; `line` and `text` are for the reader."""

    area: str
    file: str
    function: str
    edit: str
    number: int
    line: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}:{self.edit}:{self.number}"

    @property
    def module(self) -> str:
        """The name by which it is imported."""
        return self.file.split("/src/")[1].removesuffix(".py").removesuffix("/__init__").replace("/", ".")


PROBE = "_mutant_probe"
"""The builtin that a probe calls with the name of the mutant; it returns None."""


def source_code(file: str) -> CodeType:
    """A module as it is."""
    return _compiled(file, ast.parse(_text(file)))


@cache
def _text(file: str) -> str:
    """The source as it was when it was read first: functions that are alive do not follow what changes later."""
    return (ROOT / file).read_text()


def planted(mutant: Mutant) -> CodeType:
    """The module with the edit."""
    tree = ast.parse(_text(mutant.file))
    for function, edit, number, _, apply in _places(tree):
        if (function, edit, number) == (mutant.function, mutant.edit, mutant.number):
            apply(None)
            return _compiled(mutant.file, tree)
    raise LookupError(f"{mutant.name} is no place of {mutant.file}")


def probed(file: str, chosen: list[Mutant]) -> CodeType:
    """The module with a probe in front of each place that one of these edits changes."""
    tree = ast.parse(_text(file))
    wanted = {(mutant.function, mutant.edit, mutant.number): mutant.name for mutant in chosen}
    places = [(wanted.get(tuple(key)), node, apply) for *key, node, apply in _places(tree)]
    for name, node, apply in reversed(places):  # what is inside first, since its parent is then put into a probe whole
        if name is not None:
            apply(_observed(node, ast.Call(ast.Name(PROBE, ast.Load()), [ast.Constant(name)], [])))
    return _compiled(file, tree)


def _observed(node: ast.AST, called: ast.Call) -> ast.AST:
    """The node, evaluated behind a call that returns None; what an edit never takes, where it is taken, or where its
    condition calls something, which may do more than to tell."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            seen = ast.BoolOp(ast.Or(), [called, ast.Constant(True)])
            node.test = ast.BoolOp(ast.And(), [seen, test] if _calls(test) else [test, seen])
            return node
        case ast.Expr(value=value):
            node.value = ast.BoolOp(ast.Or(), [called, value])
            return node
    return ast.BoolOp(ast.Or(), [called, node])


def _calls(test: ast.AST) -> bool:
    """Whether it calls anything but probes."""
    called = [part.func for part in ast.walk(test) if isinstance(part, ast.Call)]
    return any(not (isinstance(one, ast.Name) and one.id == PROBE) for one in called)


def _compiled(file: str, tree: ast.Module) -> CodeType:
    return compile(ast.fix_missing_locations(tree), str(ROOT / file), "exec", dont_inherit=True)


def mutants(area: str) -> list[Mutant]:
    """Every mutant of an area, in the order of the files."""
    found = []
    for path in sorted({path for pattern in AREAS[area] for path in PACKAGES.glob(pattern)}):
        file = str(path.relative_to(ROOT))
        source = _text(file)
        lines = source.splitlines()
        for function, edit, number, node, _ in _places(ast.parse(source)):
            text = lines[node.lineno - 1].strip()
            found.append(Mutant(area, file, function, edit, number, node.lineno, text))
    return found


def sample(count: int, seed: int = 0, areas: tuple[str, ...] = tuple(AREAS)) -> list[Mutant]:
    """`count` mutants of each area, no two of one line, spread over the files.

    They are the first by a hash of `seed` and their names: a change of the source moves few others in or out.
    """
    chosen = []
    for area in areas:
        lines: dict[tuple[str, int], Mutant] = {}
        for mutant in sorted(mutants(area), key=lambda m: hashlib.sha256(f"{seed} {m.name}".encode()).digest()):
            lines.setdefault((mutant.file, mutant.line), mutant)
        chosen += list(lines.values())[:count]
    return chosen


_Replace = Callable[[ast.AST], None]
_Apply = Callable[[ast.AST | None], None]


def _places(tree: ast.Module) -> Iterator[tuple[str, str, int, ast.AST, _Apply]]:
    """(function, edit, number, node, apply) of each place of an edit, inside of functions and lambdas.

    `apply(None)` makes the edit, `apply(other)` puts another node there.
    """
    counts: dict[tuple[str, str], int] = {}
    for function, node, replace in _nodes(tree):
        for edit, changed in _edits(node):
            number = counts[function, edit] = counts.get((function, edit), -1) + 1

            def apply(other: ast.AST | None, replace: _Replace = replace, changed: ast.AST = changed) -> None:
                replace(changed if other is None else other)

            yield function, edit, number, node, apply


def _nodes(tree: ast.Module) -> Iterator[tuple[str, ast.AST, _Replace]]:
    """The nodes of all function bodies, with the function's qualified name and how to put another node there."""

    def inside(node: ast.AST, scope: tuple[str, ...], is_code: bool) -> Iterator[tuple[str, ast.AST, _Replace]]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list") or (
                name == "args" and not isinstance(node, ast.Call)
            ):
                continue
            for position, child in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(child, ast.AST) or _is_left_alone(child):
                    continue

                def replace(new: ast.AST, name: str = name, value: object = value, at: int = position) -> None:
                    if isinstance(value, list):
                        value[at] = new
                    else:
                        setattr(node, name, new)

                if is_code:
                    yield ".".join(scope), child, replace
                yield from inside(child, *_scope(child, scope, is_code))

    yield from inside(tree, (), False)


def _scope(node: ast.AST, scope: tuple[str, ...], is_code: bool) -> tuple[tuple[str, ...], bool]:
    match node:
        case ast.FunctionDef(name=name):
            return (*scope, name), True
        case ast.ClassDef(name=name):
            return (*scope, name), False
        case ast.Lambda():
            return scope if is_code else (*scope, "lambda"), True
    return scope, is_code


def _is_left_alone(node: ast.AST) -> bool:
    """What computes nothing that matters: messages of errors, docstrings, assertions, patterns."""
    match node:
        case (
            ast.Raise()
            | ast.Assert()
            | ast.pattern()
            | ast.JoinedStr()
            | ast.Import()
            | ast.ImportFrom()
            | ast.AnnAssign()
        ):
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Call(func=ast.Name(id=name)) if name in ("Decision", "isinstance", "cast", "TypeVar"):
            return True
    return False


def _edits(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The edits of one node: (what is done, the node in its place)."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            yield "compare", _with(node, ops=[_COMPARED[type(op)]()])
        case ast.BinOp(op=op) if type(op) in _COMPUTED and not _is_text(node):
            yield "operator", _with(node, op=_COMPUTED[type(op)]())
        case ast.BoolOp(values=values):
            for dropped in range(len(values)):
                rest = [value for at, value in enumerate(values) if at != dropped]
                yield "drop", rest[0] if len(rest) == 1 else _with(node, values=rest)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "unary", operand
        case ast.Constant(value=bool() as value):
            yield "constant", _with(node, value=not value)
        case ast.Constant(value=int() as value):
            yield "constant", _with(node, value=value + 1)
        case ast.Constant(value=float() as value):
            yield "constant", _with(node, value=value * 1.125 + (value == 0))
        case ast.If(test=test) if not isinstance(test, ast.Constant):
            yield "never", _with(node, test=ast.copy_location(ast.Constant(False), test))
        case ast.IfExp(test=test):
            yield "branch", _with(node, test=ast.copy_location(ast.Constant(False), test))
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in _NAMED:
            yield "op", _with(node, attr=_NAMED[name])
        case ast.Expr(value=ast.Call()):
            yield "skip", ast.copy_location(ast.Pass(), node)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_text(node: ast.BinOp) -> bool:
    """Whether the operands are texts or types rather than numbers, as far as one can see."""
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str | None)) for s in sides
    )
