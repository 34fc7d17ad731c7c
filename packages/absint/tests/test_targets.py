"""Names of callables and back."""

import math
import operator

import pytest
import torch

from absint.errors import UnknownTarget
from absint.targets import resolve, target_name

NAMESPACES = (
    torch, torch.nn.functional, torch.Tensor, torch.special, torch.linalg, torch.fft, operator, math,
)  # fmt: skip


def callables(namespace):
    for name in dir(namespace):
        value = getattr(namespace, name)
        stable = getattr(namespace, name) is value
        if callable(value) and stable and not isinstance(value, type):
            yield name, value


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda n: n.__name__)
def test_every_callable_round_trips(namespace):
    count = 0
    for name, value in callables(namespace):
        assert resolve(target_name(value)) is value, name
        count += 1
    assert count > 10


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (torch.nn.functional.linear, "torch.nn.functional.linear"),
        (torch.add, "torch.add"),
        (torch.Tensor.view, "torch.Tensor.view"),
        (torch.Tensor.__getitem__, "torch.Tensor.__getitem__"),
        (operator.add, "operator.add"),
        (operator.iadd, "operator.iadd"),
        (math.sqrt, "math.sqrt"),
        (torch.nn.functional.relu, "torch.nn.functional.relu"),
        (torch.ops.aten.add.Tensor, "aten.add.Tensor"),
        (torch.ops.aten.add_.Tensor, "aten.add_.Tensor"),
        (torch.nn.functional.scaled_dot_product_attention, "torch.nn.functional.scaled_dot_product_attention"),
        (torch.utils.checkpoint.checkpoint, "torch.utils.checkpoint.checkpoint"),
    ],
)
def test_names(target, name):
    assert target_name(target) == name
    assert resolve(name) is target


def test_custom_op_overloads():
    library = torch.library.Library("absint_targets", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    overload = torch.ops.absint_targets.twice.default
    assert target_name(overload) == "absint_targets.twice.default"
    assert resolve("absint_targets.twice.default") is overload
    packet = torch.ops.absint_targets.twice
    assert resolve(target_name(packet)) is packet


@pytest.mark.parametrize(
    "name",
    ["os.system", "torch.nothing", "builtins.eval", "aten.add", "torch", "aten.add.Nothing", "nolib.op.default", ""],
)
def test_unknown_names_are_refused(name):
    with pytest.raises(UnknownTarget):
        resolve(name)


def test_nameless_callables_are_refused():
    with pytest.raises(UnknownTarget):
        target_name(lambda x: x)
