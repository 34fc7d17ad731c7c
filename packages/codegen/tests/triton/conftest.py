"""The same tests run on a CUDA device where there is one, else on CPU tensors in Triton's interpreter."""

import json
import os
import subprocess
import sys

import pytest
import torch

import stagewire
from codegen.testing.interpreter import count_by_arguments

ON_GPU = torch.cuda.is_available()


@pytest.fixture
def counting_interpreter(monkeypatch):
    if not ON_GPU:
        count_by_arguments(monkeypatch)


@pytest.fixture
def interpreted_products(monkeypatch):
    """Triton's interpreter with products of bfloat16, of which it multiplies the bits."""
    if ON_GPU:
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    create = interpreter.InterpreterBuilder.create_dot

    def widened(handle):
        if handle.dtype.scalar != interpreter.tl.bfloat16:
            return handle
        bits = handle.data.astype("uint32") << 16
        return interpreter.TensorHandle(bits.view("float32"), interpreter.tl.float32)

    def patched(self, a, b, *rest):
        return create(self, widened(a), widened(b), *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", patched)


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if ON_GPU else "cpu"


COMPILE = """
import json, sys
from pathlib import Path
import stagewire
from codegen import Options
from codegen.runtime.required_cubins import required_cubins
from codegen.triton.compiling import module_of
from codegen.stage import emit
from codegen.testing.cubins import compile_cubin

unit = emit(stagewire.load(sys.argv[1], expect="loop").forward, Options(target="triton"))
module = module_of(unit.source)
(one,) = required_cubins(unit)
cubin = compile_cubin(module, one)
print(json.dumps([len(one.dtypes), sorted(one.values), sorted(one.aligned), cubin.code[:4].hex()]))
"""


@pytest.fixture
def compiled_for_sm_90(tmp_path):
    """Compiles the one kernel of a document, in a process without the interpreter: how many parameters it has, which of
    them are values, and which aligned; the first four bytes of the machine code, in hex."""

    def compiled(document):
        stagewire.save(document, tmp_path / "document.json")
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        environment["TRITON_CACHE_DIR"] = str(tmp_path)
        command = [sys.executable, "-c", COMPILE, str(tmp_path / "document.json")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return compiled


def pytest_collection_modifyitems(items):
    for item in items:
        if "triton" in item.path.parts:
            item.add_marker(pytest.mark.gpu)
