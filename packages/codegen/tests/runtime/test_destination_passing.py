"""Units that take memory for their results mean what they meant, and leave nothing that is seen in other memory."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import Options, load
from codegen.runtime import memory_kinds
from codegen.runtime.recording import bytes_made, with_destinations
from codegen.runtime.result_memory import ResultMemory
from codegen.stage import emit
from codegen.testing.programs import step_graphs
from stagewire.graph import Ref
from stagewire.types import TensorType

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def inputs_of(unit, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(type_.shape, generator=generator) / 4 for type_ in unit.input_types]


def new(type_):
    return torch.empty_strided(type_.shape, type_.stride, dtype=getattr(torch, type_.dtype))


def storages(tensors):
    return {one.untyped_storage().data_ptr() for one in tensors}


@EXAMPLES
@given(step_graphs(), st.integers(0, 9), st.sampled_from((None, 0, 64)), st.sampled_from(("fast", "reference")))
def test_results_are_the_same_and_lie_where_they_are_given(directory, graph, seed, large, executor):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_kinds, "LARGE", {} if large is None else {"cpu": large})
        unit = emit(graph, Options())
        plan = with_destinations(unit)
        inputs = inputs_of(unit, seed)
        expected = load(unit, directory, executor=executor)(*inputs)
        run = load(plan.unit, directory, executor=executor)
    moved = {name: new(type_) for name, type_ in plan.library.items()}
    copied = {name: type_ for name, type_ in zip(unit.inputs, unit.input_types, strict=True) if name in plan.between}
    types = {**plan.given, **copied}
    kinds = {name: "between" if name in plan.between else "exact" for name in types}
    placed = ResultMemory().place(types, kinds, [], plan.between)
    memory = [placed[name] for name in plan.given]
    for one in (*placed.values(), *moved.values()):
        one.fill_(torch.nan)
    copies = [placed[name].copy_(x) if name in copied else x for name, x in zip(unit.inputs, inputs, strict=True)]
    found = plan.moved(run(*copies, *memory), moved)
    seen = [one for name, one in zip(plan.given, memory, strict=True) if name not in plan.between]
    private = storages((*inputs, *seen, *moved.values()))
    for output, have, want in zip(unit.outputs, found, expected, strict=True):
        if isinstance(output, Ref):
            assert torch.equal(have, want), "another result"
            assert have.stride() == want.stride()
            assert have.untyped_storage().data_ptr() in private, "a result in memory that goes on to others"
        else:
            assert have == want
    tensors = [x for x in zip(found, expected, strict=True) if isinstance(x[1], torch.Tensor)]
    for number, (have, want) in enumerate(tensors):
        for other, wanted in tensors[:number]:
            same = want.untyped_storage().data_ptr() == wanted.untyped_storage().data_ptr()
            assert same == (have.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


def test_repeated_elements_and_other_dtypes_of_a_library_result():
    """An expanded window on a result of a library, and one that is read as another dtype, are moved as they are."""
    from stagewire.program import CallExtern, MakeView, Unit

    full = TensorType("float32", (3, 4), (4, 1))
    wide = TensorType("float32", (2, 3, 4), (0, 4, 1))
    bits = TensorType("int32", (2, 4), (4, 1), storage_offset=4)
    unit = Unit(
        target="cpp", source="", kernels=(), inputs=("x",), input_types=(full,),
        outputs=(Ref("wide"), Ref("bits"), Ref("y")),
        instructions=(
            CallExtern("aten.cumsum.default", (Ref("x"), 1), {}, ("y",), (full,)),
            MakeView("wide", "y", wide),
            MakeView("bits", "y", bits),
        ),
    )  # fmt: skip
    plan = with_destinations(unit)
    assert plan.given == {}
    assert plan.outputs == {"y": frozenset((0, 1, 2))}
    assert list(plan.library) == ["y"]
    x = torch.randn(3, 4)
    moved = {"y": new(full)}
    found = plan.moved(load(plan.unit)(x), moved)
    assert storages(found) == storages(moved.values())
    torch.testing.assert_close(found[0], x.cumsum(1).expand(2, 3, 4))
    torch.testing.assert_close(found[1], x.cumsum(1).view(torch.int32)[1:])
    assert bytes_made(unit, {}) == 4 * 12
