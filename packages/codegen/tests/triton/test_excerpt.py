"""An excerpt of a unit computes what the unit computes, and has the same key wherever it stands."""

import pytest
import torch
from msgspec.structs import replace

from codegen import Options, load
from codegen.choices import chosen
from codegen.runtime.memory_kinds import plan_memory
from codegen.runtime.tuning import Excerpts
from codegen.stage import emit
from codegen.testing.product_texts import batched_scale, linear_relu

TIMED = Options(target="triton", autotune="time")


def excerpts(graph):
    unit = emit(graph, TIMED)
    types = plan_memory(chosen(unit, {})).types
    return [Excerpts(unit, types).of(number) for number in range(len(unit.choices))]


def both(a, b):
    """Two graphs, one behind the other."""
    parts = {field: getattr(a, field) + getattr(b, field) for field in ("buffers", "inputs", "outputs", "steps")}
    return type(a)(**parts)


def test_names_and_what_stands_around_do_not_count():
    one = linear_relu(20, 30, 17, "float32")
    (alone,) = excerpts(one)
    first, second = excerpts(both(linear_relu(20, 30, 17, "float32", "_a"), linear_relu(20, 30, 17, "float32", "_b")))
    assert alone.key == first.key == second.key


def test_the_number_of_a_device_does_not_count():
    keys = set()
    for device in ("cuda:0", "cuda:3"):
        graph = linear_relu(20, 30, 17, "float32")
        buffers = tuple(replace(one, type=replace(one.type, device=device)) for one in graph.buffers)
        keys.update(one.key for one in excerpts(replace(graph, buffers=buffers)))
    assert len(keys) == 1


@pytest.mark.parametrize("other", [(21, 30, 17, "float32"), (20, 30, 18, "float32"), (20, 30, 17, "float16")])
def test_sizes_and_dtypes_count(other):
    (a,), (b,) = excerpts(linear_relu(20, 30, 17, "float32")), excerpts(linear_relu(*other))
    assert a.key != b.key


@pytest.mark.usefixtures("interpreted_products")
@pytest.mark.parametrize("graph", [linear_relu(20, 30, 17, "float32"), batched_scale(2, 20, 5, 9, "float32")])
def test_an_excerpt_runs_alone(graph, directory, device):
    buffers = tuple(replace(one, type=replace(one.type, device=device)) for one in graph.buffers)
    (one,) = excerpts(replace(graph, buffers=buffers))
    kinds = one.unit.input_types
    inputs = [torch.randn(kind.shape, device=device).as_strided(kind.shape, kind.stride) for kind in kinds]
    expected = load(chosen(one.unit, {}), directory)(*inputs)
    for number in range(len(one.unit.choices[0].alternatives)):
        found = load(chosen(one.unit, {0: number}), directory)(*inputs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
