"""Modules of Triton sources: made from text, never from a file."""

import gc
import hashlib
import importlib.util
import inspect
import linecache
import os
import py_compile
import tempfile
from pathlib import Path

import pytest

from codegen import Options, load
from codegen.stage import emit
from codegen.triton.compiling import module_of
from stagewire.codec import load as read

SOURCE = "import triton\n\n\n@triton.jit\ndef kernel(p0):\n    pass\n"


def test_the_functions_know_their_text():
    pytest.importorskip("triton", reason="pip install triton")
    module = module_of(SOURCE)
    assert "def kernel(p0):" in inspect.getsource(module.kernel.fn)


def test_the_text_goes_with_the_module():
    module = module_of("def kernel(p0):\n    pass\n")
    other = module_of("def kernel(p0):\n    pass\n")
    names = [one.kernel.__code__.co_filename for one in (module, other)]
    assert all(name in linecache.cache for name in names)
    del module
    gc.collect()
    assert [name in linecache.cache for name in names] == [False, True]
    linecache.checkcache()
    assert inspect.getsource(other.kernel).startswith("def kernel")


def test_nothing_is_run_that_lies_in_a_shared_directory(tmp_path, monkeypatch):
    """Another user made the directory first, with the right text, and other code as what Python compiled it to."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PWNED", str(tmp_path / "pwned"))
    unit = emit(
        read(Path(__file__).parents[1] / "data" / "softmax.json", expect="loop").forward, Options(target="triton")
    )
    for directory in (tmp_path / "codegen-triton", tmp_path / "codegen-triton" / "triton"):
        plant(directory, unit.source)
        directory.chmod(0o777)
    run = load(unit, executor="reference")
    run.module  # noqa: B018  # is made now
    assert not (tmp_path / "pwned").exists()
    with pytest.warns(UserWarning, match="others can write it"):
        load(unit, tmp_path / "codegen-triton", executor="reference").module  # noqa: B018
    assert not (tmp_path / "pwned").exists()


def plant(directory: Path, source: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"kernels_{hashlib.sha256(source.encode()).hexdigest()[:24]}.py"
    evil = "import os, pathlib\npathlib.Path(os.environ['PWNED']).touch()\n"
    path.write_text(evil + "#" * (len(source) - len(evil)))
    compiled = Path(importlib.util.cache_from_source(str(path)))
    os.utime(path, (1, 1))
    py_compile.compile(str(path), str(compiled), doraise=True)
    path.write_text(source)
    os.utime(path, (1, 1))
