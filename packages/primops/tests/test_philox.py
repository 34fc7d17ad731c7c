"""Random numbers by formula: published vectors, what dropout becomes on a GPU, and what stays with ATen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primops.interpret import interpret
from primops.meanings import DTYPES
from primops.meanings import philox_state as state
from primops.meanings import philox_uniform as uniform
from primops.stage import Options, lower_graph
from primops.testing.opinfo import on_device
from stagewire.errors import VerifyError
from stagewire.graph import Graph
from stagewire.parser import parse_graph
from stagewire.philox import count_for, philox, threads_for
from stagewire.testing.random123 import VECTORS
from stagewire.verify import verify_graph

H200 = 270336
"""The most threads of ATen's random kernels there: 132 multiprocessors of 2048."""


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, int], result: tuple[int, ...]) -> None:
    a, b, c, d = (torch.tensor([word]) for word in counter)
    assert tuple(int(word) for word in philox((a, b, c, d), key)) == result


@pytest.mark.parametrize(
    ("elements", "threads", "count"),
    [(1, 256, 4), (256, 256, 4), (257, 512, 4), (1000, 1024, 4), (4096 * 1024, H200, 16), (2**24 + 4, H200, 64)],
)
def test_threads_and_counts_are_those_measured(elements: int, threads: int, count: int) -> None:
    assert threads_for(elements, H200) == threads
    assert count_for(elements, threads) == count


def test_a_seed_gives_the_numbers_again() -> None:
    torch.manual_seed(3)
    first = state(4, "cpu")
    assert first != state(4, "cpu")
    torch.manual_seed(3)
    again = state(4, "cpu")
    draw = lambda pair: uniform(*pair, (3, 5), 256, 1, "cpu")  # noqa: E731
    assert torch.equal(draw(first), draw(again))
    assert draw(first).shape == (3, 5)


def lowered(text: str, threads: int = H200) -> Graph:
    graph = lower_graph(parse_graph(text), options=Options(random_threads=threads))
    verify_graph(graph)
    return graph


def dropout(type: str, before: str = "aten.add.Tensor(%x, 1.0)", given: str = "") -> str:
    """Dropout of what a call makes of the input; `type` of the operand, `given` of the input."""
    shape, _, layout = type.partition("]")
    plain = layout.partition("+")[0] + ("" if "+" not in layout else "@cuda:0")
    mask = shape.replace("f32", "b8").replace("bf16", "b8").replace("f64", "b8")
    return f"""
        input %x: {given or type}
        %y: {type} = {before}
        %z: {shape}]{plain}, %m: {mask}]{plain} = aten.native_dropout.default(%y, 0.25, True)
        return %z, %m
    """


def sharing(graph: Graph) -> tuple[object, ...]:
    """count, threads, width"""
    nodes = {node.target: node for node in graph.nodes}
    return nodes["prims.philox_state"].args[0], *nodes["prims.philox_uniform"].args[3:5]


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        ("f32[4096, 1024]@cuda:0", (16, H200, 4)),
        ("bf16[4096, 1024]@cuda:0", (16, H200, 8)),
        ("f64[4096, 1024]@cuda:0", (16, H200, 2)),
        ("bf16[7, 12]@cuda:0", (4, 256, 4)),
        ("bf16[7, 6]@cuda:1", (4, 256, 2)),
        ("f32[33, 7]@cuda:0", (4, 256, 1)),
        ("f32[16, 24]{1, 16}@cuda:0", (4, 512, 4)),
        ("f32[4, 8]+8@cuda:0", (4, 256, 4)),
        ("f32[4, 8]+6@cuda:0", (4, 256, 2)),
        ("f32[4, 8]+1@cuda:0", (4, 256, 1)),
    ],
)
def test_dropout_on_a_gpu(type: str, expected: tuple[int, int, int]) -> None:
    assert sharing(lowered(dropout(type))) == expected


def test_windows_are_drawn_one_by_one_in_row_major_order() -> None:
    """ATen would be given a copy, of which it takes several elements at a time."""
    graph = lowered("""
        input %x: f32[8, 16]@cuda:0
        %y: f32[8, 16]@cuda:0 = aten.add.Tensor(%x, 1.0)
        %w: f32[8, 4]{16, 1}@cuda:0 = aten.slice.Tensor(%y, 1, 0, 4, 1)
        %z: f32[8, 4]@cuda:0, %m: b8[8, 4]@cuda:0 = aten.native_dropout.default(%w, 0.25, True)
        return %z, %m
    """)
    assert sharing(graph) == (4, 256, 1)


STAY = {
    "the kernels are not known": (dropout("f32[4, 8]@cuda:0"), 0),
    "an input, which may begin anywhere": (dropout("f32[4, 8]@cuda:0").replace("(%y, 0.25", "(%x, 0.25"), H200),
    "what a custom operator returns": (dropout("f32[4, 8]@cuda:0", 'mine.op.default(%x) with effect="acts"'), H200),
    "one by one in another order": (dropout("f32[7, 3]{1, 7}@cuda:0"), H200),
    "windows in another order": (dropout("f32[8, 4]{1, 16}@cuda:0"), H200),
    "a symbolic size": (dropout("f32[n, 8]@cuda:0"), H200),
    "everything is dropped": (dropout("f32[4, 8]@cuda:0").replace("0.25", "1.0"), H200),
}


@pytest.mark.parametrize("why", STAY)
def test_what_stays_with_aten(why: str) -> None:
    text, threads = STAY[why]
    targets = [node.target for node in lower_graph(parse_graph(text), options=Options(random_threads=threads)).nodes]
    assert "aten.native_dropout.default" in targets
    assert "prims.philox_state" not in targets


@pytest.mark.parametrize(
    ("call", "type", "by_formula"),
    [
        ("aten.rand.default([8, 1], device=device(cuda:0))", "f32[8, 1]@cuda:0", True),
        ("aten.bernoulli.p(%x, 0.5)", "bf16[8, 1]@cuda:0", True),
        ("aten.bernoulli.p(%x, 0.5)", "b8[8, 1]@cuda:0", True),
        ("aten.rand.default([1024, 1024], device=device(cuda:0))", "f32[1024, 1024]@cuda:0", False),
        ("aten.bernoulli.p(%x, 0.5)", "f64[8, 1]@cuda:0", False),
        ("aten.randn.default([8, 1], device=device(cuda:0))", "f32[8, 1]@cuda:0", False),
    ],
)
def test_few_numbers_are_computed_in_place(call: str, type: str, by_formula: bool) -> None:
    graph = lowered(f'input %x: {type}\n%y: {type} = {call} with effect="draws"\nreturn %y\n')
    targets = {node.target for node in graph.nodes}
    assert ("prims.philox_uniform" in targets) == by_formula


DRAWN = (
    "aten.rand.default([32, 32], dtype=dtype(DTYPE), device=device(cuda:0))",
    "aten.randn.default([32, 32], dtype=dtype(DTYPE), device=device(cuda:0))",
    "aten.rand_like.default(%x)",
    "aten.randn_like.default(%x)",
    "aten.bernoulli.p(%x, 0.25)",
    "aten.bernoulli.p(%x, 0.75)",
)
FARTHEST = 0.12
"""How far apart the shares below any number are of two times 1,024 numbers of one distribution, but in one of 10^6."""


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(DRAWN), st.sampled_from(("f32 float32", "bf16 bfloat16", "f16 float16")), st.integers(0, 999))
def test_what_a_gpu_draws_is_distributed_as_what_a_cpu_draws(call: str, kind: str, seed: int) -> None:
    short, dtype = kind.split()
    type, call = f"{short}[32, 32]@cuda:0", call.replace("DTYPE", dtype)
    graph = parse_graph(f'input %x: {type}\n%y: {type} = {call} with effect="draws"\nreturn %y\n')
    x = torch.zeros(32, 32, dtype=DTYPES[dtype])
    torch.manual_seed(seed)
    here, there = (
        interpret(on_device(one, "cuda:0", "cpu"), [x])[0].double().flatten().sort().values
        for one in (graph, lower_graph(graph, options=Options(random_threads=H200)))
    )
    below = [torch.searchsorted(one, torch.cat((here, there)), right=True) for one in (here, there)]
    assert (below[0] - below[1]).abs().max() <= FARTHEST * len(x.flatten())


@given(threads=st.sampled_from((-256, 255, 256, 768)), width=st.sampled_from((0, 1, 2, 3, 4, 8, 16, 17)))
def test_blocks_of_threads_each_with_a_power_of_two(threads: int, width: int) -> None:
    call = f'prims.philox_uniform(%s, %o, [6], {threads}, {width}, "cpu")'
    graph = parse_graph(f"input %s: i64[]\ninput %o: i64[]\n%y: f32[6] = {call}\nreturn %y")
    if threads > 0 and threads % 256 == 0 and width in (1, 2, 4, 8, 16):
        verify_graph(graph)
        numbers = interpret(graph, [torch.tensor(3), torch.tensor(0)])[0]
        assert len(set(numbers.tolist())) == 6
    else:
        with pytest.raises(VerifyError, match="D2"):
            verify_graph(graph)


@given(count=st.integers(-8, 8))
def test_a_stream_moves_on_by_whole_calls(count: int) -> None:
    call = f'prims.philox_state({count}, "cpu") with effect="draws"'
    graph = parse_graph(f"%s: i64[], %o: i64[] = {call}\nreturn %s, %o")
    if count > 0 and count % 4 == 0:
        verify_graph(graph)
    else:
        with pytest.raises(VerifyError, match="D3"):
            verify_graph(graph)


@given(count=st.one_of(st.integers(2**31 - 4, 2**31 + 4), st.integers(1, 2**33)))
def test_indices_of_32_bits(count: int) -> None:
    """ATen draws for larger tensors in parts."""
    graph = lower_graph(parse_graph(dropout(f"f32[{count}]@cuda:0")), options=Options(random_threads=H200))
    by_formula = any(node.target == "prims.philox_uniform" for node in graph.nodes)
    assert by_formula == (count <= torch.iinfo(torch.int32).max)


DRAWN = {
    "aten.rand_like.default(%x)": (0.5, 1 / 12),
    "aten.randn_like.default(%x)": (0.0, 1.0),
    "aten.bernoulli.p(%x, 0.25)": (0.25, 0.1875),
    "aten.native_dropout.default(%ones, 0.5, True)": (1.0, 1.0),
}
"""Calls, with the mean and the variance of what they draw."""


@settings(deadline=None)
@given(
    call=st.sampled_from(sorted(DRAWN)),
    shape=st.sampled_from(((3000,), (60, 50), (2, 0), (), (1, 4, 900))),
    dtype=st.sampled_from(("f32", "bf16", "f16")),
    threads=st.sampled_from((0, 1024, H200)),
    layout=st.sampled_from(("", "@cuda:0", "@cuda:0")),
)
def test_what_is_drawn_has_its_distribution(
    call: str, shape: tuple[int, ...], dtype: str, threads: int, layout: str
) -> None:
    """On a CPU, and on a GPU by ATen or by formula."""
    kind = f"[{', '.join(map(str, shape))}]{layout}"
    results = f"%y: {dtype}{kind}" + f", %m: b8{kind}" * ("dropout" in call)
    text = f"""
        input %x: {dtype}{kind}
        %ones: {dtype}{kind} = aten.add.Tensor(%x, 1.0)
        {results} = {call} with effect="draws"
        return %y
    """
    graph = lowered(text, threads)
    graph = on_device(graph, "cuda:0", "cpu")
    torch.manual_seed(0)
    numbers = interpret(graph, [graph_input(graph)])[0].double()
    assert tuple(numbers.shape) == shape
    if numbers.numel() > 1000:
        mean, variance = DRAWN[call]
        assert abs(numbers.mean() - mean) < 0.06
        assert abs(numbers.var() - variance) < 0.12 * max(variance, 0.3)


def graph_input(graph: Graph) -> torch.Tensor:
    (value,) = graph.inputs
    return torch.zeros(value.type.shape, dtype=DTYPES[value.type.dtype])  # type: ignore[union-attr]
