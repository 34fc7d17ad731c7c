"""Where there is no CUDA device, Triton's kernels run in its interpreter, on CPU tensors.

The interpreter is chosen by an environment variable that Triton reads when it is imported and when a kernel is defined.
pytest reads this file before it collects any tests: those of other packages, beside these in one process, may import
Triton (torch's own tables of operators do).
"""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    """Machine code of all tests of the run (it is keyed by content): the native executor is compiled once, too."""
    return tmp_path_factory.mktemp("code")


@pytest.fixture
def two_threads():
    """torch's kernels, and so ours, have two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def x87_stack_stays_empty():
    """No kernel leaves the registers of MMX behind: fmod, in whatever runs next, would give nan."""
    from codegen.testing.x87 import x87_stack_is_empty  # after the lines above: codegen may import Triton

    yield
    assert x87_stack_is_empty()
