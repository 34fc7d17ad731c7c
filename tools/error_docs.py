"""Write docs/errors.md: every error code with its meaning, its fix, a program that triggers it and what that prints.

    python tools/error_docs.py [--check]

The classes are found in packages/*/src, the programs in integration_tests/error_triggers; all are run. With --check
nothing is written, and the exit code is 1 if the file is out of date.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import re
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from stagewire.errors import StageError  # noqa: E402

PAGE = ROOT / "docs" / "errors.md"
PACKAGES = ("stagewire", "absint", "bytecap", "aotgrad", "primops", "loopir", "codegen", "stagefold")
WIDTH = 128
"""Longer lines of messages are cut."""

HEAD = """\
# Error codes

Every error of stagefold is a `stagewire.errors.StageError`: a code that never changes its meaning, what happened, where
(the user's line if there is one), and what to do instead. `python tools/error_docs.py` writes this page and runs its
examples, which are in `integration_tests/error_triggers`. In an example `folder` is an empty directory, and `patch` a
`pytest.MonkeyPatch`.
"""

CODE = re.compile(r'^    code = "([A-Z]{2}\d{3})"$', re.MULTILINE)
TRIGGER = re.compile(r"[A-Z]{2}\d{3}")


class Section(NamedTuple):
    """One package: its classes by code, and the module of their triggers."""

    package: str
    classes: dict[str, type[StageError]]
    triggers: Any


def sections() -> list[Section]:
    """All packages; a code that two classes have, by accident or by inheritance, is a ValueError."""
    return [
        Section(package, codes(package), importlib.import_module(f"integration_tests.error_triggers.{package}"))
        for package in PACKAGES
    ]


def codes(package: str) -> dict[str, type[StageError]]:
    """The error classes that a package's users can meet, by code, in the order of codes; not those of its test kit."""
    source = ROOT / "packages" / package / "src"
    for file in sorted(source.rglob("*.py")):
        if CODE.search(file.read_text()) is not None:
            importlib.import_module(".".join(file.relative_to(source).with_suffix("").parts))
    found: dict[str, type[StageError]] = {}
    for error in _subclasses(StageError):
        if error.__module__.startswith(f"{package}.testing.") or "code" not in vars(error):
            continue  # without a code of its own it is a kind of its base
        if error.__module__.partition(".")[0] == package and found.setdefault(error.code, error) is not error:
            raise ValueError(f"{error.code} belongs to {error.__qualname__} and to {found[error.code].__qualname__}")
    return dict(sorted(found.items()))


def _subclasses(error: type[StageError]) -> Iterator[type[StageError]]:
    for one in error.__subclasses__():
        yield one
        yield from _subclasses(one)


def message_of(section: Section, code: str) -> str:
    """What the trigger of a code prints, without what differs between machines; a fix only where the class has none."""
    trigger = vars(section.triggers).get(code)
    if trigger is None:
        raise LookupError(f"{code} has no trigger in {section.triggers.__file__}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        text = _printed(trigger, folder=folder, patch=patch)
    if not text.startswith(f"{code}: "):
        raise LookupError(f"the trigger of {code} gives: {text or 'nothing'}")
    if section.classes[code].fix:
        text = text.partition("\n  fix: ")[0]
    return _everywhere(text, trigger, folder)


def _printed(trigger: Callable[..., StageError | None], **given: Any) -> str:
    """The error that is raised, returned, or written to stderr."""
    wanted = {name: value for name, value in given.items() if name in inspect.signature(trigger).parameters}
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            found = trigger(**wanted)
        except StageError as error:
            found = error
    return stderr.getvalue() if found is None else str(found)


def _everywhere(text: str, trigger: Callable[..., Any], folder: Path) -> str:
    """The message as any machine prints it; lines count from the top of the example."""
    file, (lines, first) = inspect.getsourcefile(trigger), inspect.getsourcelines(trigger)
    top = first + len(lines) - len(_body(trigger).splitlines())
    text = re.sub(rf"{re.escape(str(file))}:(\d+)", lambda found: f"example.py:{int(found[1]) - top + 1}", text)
    text = text.replace(f"{trigger.__name__}.<locals>.", "").replace(str(folder), "folder")
    text = text.replace(f"torch {torch.__version__}", "torch X.Y").strip()
    return "\n".join(line.rstrip() if len(line) <= WIDTH else f"{line[:WIDTH]} ..." for line in text.splitlines())


def _body(function: Callable[..., Any]) -> str:
    """The source of a function without its head."""
    source = inspect.getsource(function)
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.FunctionDef)
    return textwrap.dedent("\n".join(source.splitlines()[tree.body[0].lineno - 1 :]))


def _shared_lines(triggers: Any) -> str:
    """What stands above the first trigger, without the docstring."""
    lines = inspect.getsource(triggers).splitlines()
    tree = ast.parse("\n".join(lines))
    first = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and TRIGGER.fullmatch(node.name))
    assert tree.body[0].end_lineno is not None
    text = "\n".join(lines[tree.body[0].end_lineno : first.lineno - 1])
    return text.replace("from __future__ import annotations\n", "").strip()


def entry(section: Section, code: str, message: str) -> str:
    """The lines about one code."""
    error = section.classes[code]
    meaning = (inspect.getdoc(error) or "").partition("\n\n")[0]
    fix = f"Fix: {error.fix}\n\n" if error.fix else ""
    example = _body(vars(section.triggers)[code])
    return f"### {code} {error.__name__}\n\n{meaning}\n\n{fix}```python\n{example}\n```\n\n```text\n{message}\n```\n"


def page(message_of: Callable[[Section, str], str]) -> str:
    """The whole file."""
    parts = [HEAD]
    for section in sections():
        about = inspect.getdoc(section.triggers)
        parts.append(f"## {section.package}\n\n{about}\n\n```python\n{_shared_lines(section.triggers)}\n```\n")
        parts += [entry(section, code, message_of(section, code)) for code in section.classes]
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    text = page(message_of)
    if "--check" not in arguments:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE.relative_to(ROOT)} is out of date: run python tools/error_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
