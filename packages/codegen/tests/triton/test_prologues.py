"""What makes an operand of a product is computed where a template reads the operand, if nothing else needs it."""

import pytest
from msgspec.structs import replace

from codegen import Options, load
from codegen.choices import chosen
from codegen.runtime.tuning import Excerpts
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.product_texts import made_operands
from codegen.testing.products import whole_inputs
from codegen.testing.reference import run_graph, windowed
from codegen.triton.sites import find_sites
from stagewire.graph import Ref
from stagewire.loop import Extern, Kernel
from stagewire.program import Allocate, CallExtern, Launch, Release
from stagewire.verify.programs import check_unit

TIMED = Options(target="triton", autotune="time")


def types_of(graph):
    return {buffer.name: buffer.type for buffer in graph.buffers}


def site_of(graph):
    (site,) = find_sites(graph, types_of(graph))[1].values()
    return site


@pytest.mark.usefixtures("interpreted_products")
@pytest.mark.parametrize("kept", [False, True], ids=["left", "right"])
@pytest.mark.parametrize(("dtype", "depth"), [("float32", 17), ("bfloat16", 33), ("float16", 64)])
def test_every_alternative_computes_the_same(kept, dtype, depth, directory, device):
    graph = made_operands(20, 30, depth, dtype, kept)
    assert site_of(graph).prologue.side == ("right" if kept else "left")
    types, inputs = types_of(graph), whole_inputs(graph, 1)
    expected = run_graph(graph, inputs)
    placed = replace(graph, buffers=tuple(replace(b, type=replace(b.type, device=device)) for b in graph.buffers))
    unit = emit(placed, TIMED)
    assert not list(check_unit(unit))
    tensors = [inputs[name].to(device).as_strided(types[name].shape, types[name].stride) for name in graph.inputs]
    (choice,) = unit.choices
    plain = [one for one in choice.alternatives if sum(isinstance(i, Launch) for i in one) == 2]
    whole = [one for one in choice.alternatives if sum(isinstance(i, Launch) for i in one) == 1]
    assert plain
    assert 0 < len(whole) <= 4
    for pick in (None, 0, len(plain), len(choice.alternatives) - 1):
        one = chosen(unit, {} if pick is None else {0: pick})
        for output, tensor in zip(graph.outputs, load(one, directory)(*tensors), strict=True):
            assert_same(tensor.cpu(), windowed(expected[output.name], types[output.name]))


def test_the_operand_is_nowhere_and_the_memory_that_it_would_take_over_ends():
    graph = made_operands(20, 30, 17, "float32")
    unit = emit(graph, TIMED)
    one = unit.choices[0].alternatives[-1]
    assert not any(isinstance(i, Allocate) and i.buffer == "a" for i in one)
    assert Release("h") in one
    assert Release("a") not in one
    own = unit.instructions[unit.choices[0].start : unit.choices[0].stop]
    assert sum(isinstance(i, Launch) for i in own) == 2
    assert sum(isinstance(i, CallExtern) for i in own) == 1
    alone = Excerpts(unit, types_of(graph)).of(0).unit
    assert not list(check_unit(alone))
    assert set(alone.inputs) == {"h", "s", "c"}


def changed(graph, **fields):
    return replace(graph, **fields)


def test_an_operand_that_something_else_reads_is_kept():
    graph = made_operands(20, 30, 17, "float32")
    (call,) = [step for step in graph.steps if isinstance(step, Extern)]
    again = Extern("aten.sum.default", (Ref("a"),), {}, ("q",))
    more = next(b for b in graph.buffers if b.name == "p")
    place = graph.steps.index(call) + 1
    twice = changed(
        graph,
        buffers=(*graph.buffers, replace(more, name="q", type=replace(more.type, shape=(), stride=()))),
        steps=(*graph.steps[:place], again, *graph.steps[place:]),
        outputs=(*graph.outputs, Ref("q")),
    )
    assert site_of(twice).prologue.side == "right"


def test_what_it_is_made_of_may_not_change_before_the_product():
    graph = made_operands(20, 30, 17, "float32")
    first, scale, cast, *rest = graph.steps
    assert isinstance(cast, Kernel)
    written = replace(cast.sections[0].statements[-1], buffer="s")  # into the factors
    statements = (*cast.sections[0].statements[:-1], replace(written, index=replace(written.index, terms=())))
    between = replace(cast, name="between", sections=(replace(cast.sections[0], statements=statements),))
    assert site_of(changed(graph, steps=(first, scale, between, cast, *rest))).prologue.side == "right"


def test_what_uses_a_product_is_its_epilogue_and_no_prologue():
    graph = made_operands(20, 30, 17, "float32")
    second = Extern("aten.mm.default", (Ref("y"), Ref("y2")), {}, ("z",))
    type_ = next(b.type for b in graph.buffers if b.name == "y")
    more = (
        replace(graph.buffers[0], name="y2", type=replace(type_, shape=(30, 20), stride=(20, 1))),
        replace(graph.buffers[-2], name="z", type=replace(type_, shape=(20, 20), stride=(20, 1))),
    )
    sites = find_sites(
        changed(
            graph,
            buffers=(*graph.buffers, *more),
            inputs=(*graph.inputs, "y2"),
            steps=(*graph.steps, second),
            outputs=(Ref("z"),),
        ),
        types_of(graph) | {b.name: b.type for b in more},
    )[1]
    assert {site.product.result: (site.kernel is not None, site.prologue is not None) for site in sites.values()} == {
        "p": (True, True),
        "z": (False, False),
    }
