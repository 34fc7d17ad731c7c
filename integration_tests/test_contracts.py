"""A deliberate fault is found by what `nox -s lint` runs over the sources; contracts that need imports hold."""

from __future__ import annotations

import ast
import builtins
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import forbidden_imports  # noqa: E402
import import_circles  # noqa: E402
import one_op  # noqa: E402
import private_names  # noqa: E402
import retired_words  # noqa: E402


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch import _inductor",
        "from torch._functorch.aot_autograd import aot_function",
        "import torch\ntorch.compile(print)",
        "import torch\nx = torch._decomp.decomposition_table",
        "import importlib\nimportlib.import_module('torch._inductor.ir')",
    ],
)
def test_a_bad_import_is_found(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text(line + "\n")
    assert forbidden_imports.main([str(tmp_path)]) == 1
    assert "bad.py:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch._C._set_grad_enabled(True)",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "from torch.optim import optimizer\nread = optimizer._get_value",
        "import torch\nkeys = torch._C\nkeys._dispatch_keys(None)",
        "import torch\nold = tuple(torch.__version__.split('.')) < ('2', '13')",
    ],
)
def test_a_private_name_elsewhere_is_found(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text(line + "\n")
    assert private_names.main([str(tmp_path)]) == 1
    assert "bad.py:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch.Tensor.__add__, torch.ops.aten._to_copy",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch._ops import OpOverload",
    ],
)
def test_other_names_are_free(line: str, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(line + "\n")
    assert private_names.main([str(tmp_path)]) == 0


def test_compiling_leaves_torchs_compiler_unimported() -> None:
    script = """
import sys, torch, stagefold
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.BatchNorm1d(4))
compiled = stagefold.compile(model, fullgraph=True)
compiled(torch.randn(3, 4)).sum().backward()
bad = [m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic"))]
assert not bad, bad[:5]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_umbrella_uses_public_names() -> None:
    packages = private_names.Packages(ROOT / "packages")
    leaks = lambda text: [name for _, name in packages.leaks(ast.parse(text))]  # noqa: E731
    assert leaks("from aotgrad.tracer.mode import TraceMode\nimport codegen.cpp.plan") == [
        "aotgrad.tracer.mode.TraceMode",
        "codegen.cpp.plan",
    ]
    assert leaks("from aotgrad import tracer, Partition") == ["aotgrad.tracer"]
    assert leaks("from stagewire.graph import Node\nimport torch.nn\nfrom stagefold.subgraphs.cut import cut") == []


def test_public_names_have_docstrings() -> None:
    assert private_names.Packages(ROOT / "packages").undocumented() == []


def test_the_page_of_one_op_is_what_the_stages_make() -> None:
    assert one_op.main(["--check"]) == 0, "python tools/one_op.py writes it"


def test_a_retired_word_is_found(tmp_path: Path) -> None:
    words = retired_words.retired(retired_words.GLOSSARY.read_text())
    (tmp_path / "beside.py").write_text("def held_back(): ...\ndef beside(): ...\n")
    assert [fault.rpartition("/")[2] for fault in retired_words.faults(tmp_path, words)] == [
        "beside.py: beside is retired, for thread coarsening",
        "beside.py:1: held_back is retired, for recompute bans",
    ]


def test_a_knot_of_imports_is_found(tmp_path: Path) -> None:
    package = tmp_path / "bytecap"
    (package / "hook").mkdir(parents=True)
    (package / "driver").mkdir()
    (package / "hook" / "__init__.py").write_text("def f():\n    from bytecap import driver\n")
    (package / "driver" / "__init__.py").write_text("import bytecap.hook\n")
    assert list(import_circles.faults(package)) == ["bytecap.hook imports bytecap.driver, which is above it"]
    names = [f"m{number}" for number in range(5)]
    for name, other in zip(names, [*names[1:], names[0]], strict=True):
        (package / f"{name}.py").write_text(f"from bytecap.{other} import x\n")
    assert "bytecap: 5 modules import each other" in next(import_circles.faults(package))


def names_that_cpython_3_12_confuses(source: str) -> list[tuple[int, str]]:
    """The builtins that one comprehension of a function binds and another one reads: early releases of CPython 3.12,
    which write comprehensions into the function, raise UnboundLocalError there."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        comprehensions = [c for c in ast.walk(function) if isinstance(c, ast.ListComp | ast.SetComp | ast.DictComp)]
        bound = [
            {n.id for n in ast.walk(c) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            for c in comprehensions
        ]
        for here, own in zip(comprehensions, bound, strict=True):
            shadowed = set().union(*bound) - own
            names = [n for n in ast.walk(here) if isinstance(n, ast.Name) and n.id in shadowed]
            found += [(n.lineno, n.id) for n in names if hasattr(builtins, n.id)]
    return found


def test_no_comprehension_reads_a_builtin_that_another_one_binds() -> None:
    confused = "def f(a):\n    b = [type for type in a]\n    return [type(x) for x in b]\n"
    assert names_that_cpython_3_12_confuses(confused) == [(3, "type")]
    files = [*(ROOT / "packages").glob("*/src/**/*.py"), *(ROOT / "benchmarks").glob("*.py")]
    assert {str(f): found for f in files if (found := names_that_cpython_3_12_confuses(f.read_text()))} == {}


@pytest.mark.parametrize(
    "package", ["absint", "aotgrad", "bytecap", "codegen", "loopir", "primops", "stagefold", "stagewire"]
)
def test_public_names_are_there_whatever_was_imported_before(package: str) -> None:
    """A name that is imported when it is asked for is not that of a module, which an import would put there instead."""
    found = importlib.import_module(package)
    lazy = {name for name in found.__all__ if name not in vars(found)}
    modules = {one.name for one in pkgutil.iter_modules(found.__path__)}
    assert not lazy & modules
    assert all(getattr(found, name) is not None for name in found.__all__)
