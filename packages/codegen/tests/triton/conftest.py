"""The same tests run on a CUDA device where there is one, else on CPU tensors in Triton's interpreter."""

import pytest
import torch

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


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("triton")


def pytest_collection_modifyitems(items):
    for item in items:
        if "triton" in item.path.parts:
            item.add_marker(pytest.mark.gpu)
