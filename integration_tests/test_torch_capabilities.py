"""A release of torch that lacks private names: everything is imported, what needs them runs plain, doctor tells."""

from __future__ import annotations

import subprocess
import sys

import pytest

LACKING = """
import sys, warnings
import torch
from stagewire import capabilities

missing, find = set(sys.argv[1:]), capabilities.find

def partly(library, path):
    private = any(part.startswith("_") for part in path.split(".")) and not path.startswith("torch._foreach")
    return capabilities.MISSING if path in missing or ("all" in missing and private) else find(library, path)

capabilities.find = partly

import stagefold
from stagefold.doctor import missing_names

def program(x, y):
    with torch.no_grad():
        scale = x.max()
    return torch.nn.functional.linear(x.sin(), y).relu() / scale, torch.max(x, 1).values

x, y = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
expected = program(x, y)
expected[0].sum().backward()
gradients, x.grad, y.grad = (x.grad, y.grad), None, None
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    compiled = stagefold.compile(program)
    for found in (compiled(x, y), compiled(x, y)):
        torch.testing.assert_close(found, expected)
found[0].sum().backward()
torch.testing.assert_close((x.grad, y.grad), gradients)
told = {row.what for row in missing_names()}
stated = {name for name in missing if not name.startswith("torch.ops.")}
assert stated - {"all"} <= told, (missing, told)
assert not any(row.good for row in missing_names())
print(len(told))
"""


def run(*missing: str) -> int:
    done = subprocess.run([sys.executable, "-c", LACKING, *missing], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_torch_without_any_private_name() -> None:
    assert run("all") > 30


@pytest.mark.parametrize(
    "name",
    [
        "torch._C._set_grad_enabled",
        "torch._C._dispatch_keys",
        "torch.utils._python_dispatch.TorchDispatchMode",
        "torch._C._DisableTorchDispatch",
        "torch._C._autograd._get_current_graph_task_keep_graph",
        "torch.ops.aten.cholesky.default",  # torch 2.14 has none
    ],
)
def test_a_torch_without_one_of_them(name: str) -> None:
    run(name)
