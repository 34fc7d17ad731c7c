"""Partitions: the cut is minimal, the halves compute what the whole computes, and wrong partitions are refused."""

from __future__ import annotations

import networkx
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from aotgrad import AotGrad, Joint, MinCut, Partition, bind_interpreted, cut, executor
from aotgrad.bind import read_constant
from aotgrad.errors import BackwardFailed, BadPartitioner, NoInverse, PartitionError, UnsupportedOutput
from aotgrad.ops import is_random, packet_of
from aotgrad.partial import partial_backward
from aotgrad.partition.flow import INFINITE, FlowNetwork
from aotgrad.partition.min_cut import SINK, SOURCE, cut_network
from aotgrad.partition.needs import Sizes, needs_of
from aotgrad.partition.policy import Policy
from aotgrad.partition.schedule import backward_nodes, peak_backward_bytes
from aotgrad.partition.split import Partitioner
from aotgrad.partition.stage import Options
from aotgrad.testing import capture_by_torch_function, check_against_eager, eager_refuses_backward
from aotgrad.testing.strategies import captures, programs
from stagewire import decode, encode
from stagewire.capture import Capture
from stagewire.grad import SavedInput, SavedResult
from stagewire.graph import node_references
from stagewire.prim import Prim


def joint_of(program, *inputs: torch.Tensor) -> Joint:
    return AotGrad().joint(capture_by_torch_function(program, inputs)[0])


def parts_of(program, *inputs: torch.Tensor, **options: object) -> Prim:
    return cut(AotGrad().run(capture_by_torch_function(program, inputs)[0]), Options(**options))


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


# Maximum flow.

EDGES = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11), st.integers(0, 40)), max_size=60)


def reference_flow(edges: list[tuple[int, int, int]]) -> int:
    graph = networkx.DiGraph()
    graph.add_nodes_from((SOURCE, SINK))
    for tail, head, capacity in edges:
        if graph.has_edge(tail, head):
            graph[tail][head]["capacity"] += capacity
        else:
            graph.add_edge(tail, head, capacity=capacity)
    return networkx.minimum_cut_value(graph, SOURCE, SINK)


@settings(max_examples=250, deadline=None)
@given(EDGES)
def test_flow_equals_networkx_on_random_networks(edges: list[tuple[int, int, int]]) -> None:
    edges = [edge for edge in edges if edge[0] != edge[1]]
    network = FlowNetwork(12)
    for edge in edges:
        network.add_edge(*edge)
    value = network.maximum_flow(SOURCE, SINK)
    assert value == reference_flow(edges)
    near = network.sink_side(SINK)
    assert near[SINK]
    assert not near[SOURCE]
    assert sum(capacity for tail, head, capacity in edges if near[head] and not near[tail]) == value


@settings(max_examples=30, deadline=None)
@given(captures())
def test_cut_of_random_programs_equals_networkx(capture: Capture) -> None:
    try:
        joint = AotGrad().joint(capture)
    except (BackwardFailed, NoInverse, UnsupportedOutput):
        reject()
    network = cut_network(joint, needs_of(joint), MinCut())
    flow = FlowNetwork(network.vertices)
    for edge in network.edges:
        flow.add_edge(*edge)
    value = flow.maximum_flow(SOURCE, SINK)
    assert value == reference_flow(network.edges)
    assert value < INFINITE


def test_cut_of_a_deep_program_equals_networkx() -> None:
    """Thousands of vertices, as a transformer of a dozen layers has."""

    def program(x, w, v):
        for _ in range(130):
            x = x + F.gelu(F.layer_norm(x, (8,)) @ w, approximate="tanh").mul(2).sigmoid() @ v
        return x.square().sum()

    joint = joint_of(program, leaf(4, 8), leaf(8, 16), leaf(16, 8))
    network = cut_network(joint, needs_of(joint), MinCut())
    assert network.vertices > 2000
    flow = FlowNetwork(network.vertices)
    for edge in network.edges:
        flow.add_edge(*edge)
    assert flow.maximum_flow(SOURCE, SINK) == reference_flow(network.edges)


# A memory budget.


def residual(x, w, v):
    for _ in range(6):
        x = x + F.dropout(F.gelu(F.layer_norm(x, (8,)) @ w) @ v, 0.3)
    return F.softmax(x, -1).square().sum()


def test_a_smaller_budget_saves_less_and_means_the_same() -> None:
    inputs = [leaf(16, 8), leaf(8, 32), leaf(32, 8)]
    capture = capture_by_torch_function(residual, inputs)[0]
    sizes, peaks = [], []
    for budget in (1.0, 0.7, 0.4, 0.2, 0.0):
        parts = check_against_eager(capture, inputs, partition=Options(memory_budget=budget))
        sizes.append(parts.partition.saved_bytes)
        kept = [value for value in parts.forward.nodes if is_random(value)]
        least = sum(16 * 8 for _ in kept)  # masks of one byte an element are never drawn again
        peaks.append(peak_with(MinCut(memory_budget=budget), capture))
        assert sizes[-1] <= max(sizes[0] * budget, least) or peaks[-1] < peak_with(save_nothing, capture)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 1
    assert sizes[-1] < sizes[0] / 2
    assert peaks == sorted(peaks, reverse=True)


def save_nothing(joint: Joint) -> Partition:
    """Inputs and masks."""
    drawn = [value.name for node in joint.graph.nodes if is_random(node) for value in node.results]
    return Partition((*drawn, *(value.name for value in joint.primal_values)))


def peak_with(partitioner: Partitioner, capture: Capture) -> int:
    """What the backward holds at its worst moment."""
    joint = AotGrad().joint(capture)
    return peak_backward_bytes(joint, needs_of(joint), Sizes.of(joint), partitioner(joint).saved)


def test_products_computed_again_stand_before_what_is_fused() -> None:
    def program(x, w):
        return ((x @ w).tanh() * 2).sum() * 3

    capture = capture_by_torch_function(program, [leaf(4, 8), leaf(8, 8)])[0]
    joint = AotGrad().joint(capture)
    needs = needs_of(joint)
    nodes = backward_nodes(joint, needs, frozenset(save_nothing(joint).saved), [])
    targets = [node.target for node in nodes]
    first = next(number for number, node in enumerate(nodes) if node in needs.backward)
    assert targets.index("aten.mm.default") < first


def test_without_any_budget_attention_is_computed_again() -> None:
    def program(x):
        return F.scaled_dot_product_attention(x, x, x).square().sum()

    parts = parts_of(program, leaf(1, 2, 8, 16), memory_budget=0.0)
    assert parts.partition.saved_bytes < 8 * 16 * 2 * 4
    assert any("flash_attention" in name for name in parts.partition.recomputed)


@pytest.mark.parametrize("budget", [-0.5, 1.5])
def test_a_budget_is_a_part(budget: float) -> None:
    with pytest.raises(BadPartitioner, match="memory budget"):
        parts_of(lambda x: x.exp().sum(), leaf(3), memory_budget=budget)


def test_only_the_minimum_cut_takes_a_budget() -> None:
    with pytest.raises(BadPartitioner, match="save_everything"):
        parts_of(lambda x: x.exp().sum(), leaf(3), partitioner="save_everything", memory_budget=0.5)


# What is saved.


def test_views_are_free_and_their_bases_are_saved() -> None:
    parts = parts_of(lambda x, w: (x @ w).t().exp().sum(), leaf(4, 5), leaf(5, 6))
    nodes = [node.target for node in parts.backward.nodes]
    assert "aten.exp.default" in nodes or "aten.mm.default" in nodes
    assert parts.partition.saved_bytes <= parts.partition.saved_bytes_without_recompute


def test_cheap_chain_is_computed_again_from_one_value() -> None:
    def program(x, w):
        h = x @ w
        return ((h * 2 + 1).clamp(min=0) * (h - 3) * (h + 4)).sum()

    parts = parts_of(program, leaf(8, 8), leaf(8, 8))
    assert sum(type(slot) is SavedResult for slot in parts.binding.saved) == 1
    assert parts.partition.saved_bytes == 8 * 8 * 4


def test_products_and_reductions_are_never_computed_again() -> None:
    def program(x, w):
        return F.layer_norm((x @ w).softmax(-1) @ w, (8,)).exp().sum()

    parts = parts_of(program, leaf(8, 8), leaf(8, 8))
    recomputed = set(parts.partition.recomputed)
    made_by = {value.name: node.target for node in parts.forward.nodes for value in node.results}
    heavy = {"aten.mm.default", "aten._softmax.default", "aten.native_layer_norm.default"}
    assert not {made_by.get(name) for name in recomputed} & heavy


def test_operand_of_a_product_in_the_backward_is_saved() -> None:
    def program(x, w, v):
        return ((x @ w).tanh() @ v).sum()

    def tanh_runs(**options: object) -> int:
        parts = parts_of(program, leaf(8, 8), leaf(8, 8), leaf(8, 8), **options)
        return [node.target for node in parts.backward.nodes].count("aten.tanh.default")

    assert tanh_runs() == 0
    assert tanh_runs(partitioner=MinCut(save_operands=False)) == 0
    # A product is in memory anyway: a cheap function of it is not saved in its place.
    assert tanh_runs(partitioner=MinCut(save_operands=False, policy=Policy(transcendental=1))) == 1


def test_an_operand_that_unfolds_an_input_is_computed_again_from_it() -> None:
    """Unlike one that takes no more memory than the input: it was written in any case."""
    truths, numbers = torch.rand(4, 4, 3) > 0.5, torch.randn(4, 4, 3)

    def masked(x, truths):
        return F.conv1d(x, torch.zeros(4, 4, 3).masked_fill(truths, -1.0))

    unfolded = parts_of(masked, leaf(2, 4, 16), truths).binding.saved
    doubled = parts_of(lambda x, numbers: F.conv1d(x, numbers * 2), leaf(2, 4, 16), numbers).binding.saved
    assert {saved.input for saved in unfolded if isinstance(saved, SavedInput)} == {0, 1}
    assert not any(isinstance(saved, SavedResult) for saved in unfolded)
    assert [type(saved) for saved in doubled].count(SavedResult) == 1


def test_a_copy_of_an_input_is_saved_and_not_the_input() -> None:
    queue = torch.randn(4, 12)
    parts = parts_of(lambda x: (x @ queue.clone()).tanh(), leaf(3, 4))
    copy = next(node.results[0].name for node in parts.forward.nodes if node.target == "aten.clone.default")
    assert copy in [value.name for value in parts.backward.inputs]
    assert all(isinstance(saved, SavedResult) for saved in parts.binding.saved)


def test_residual_stream_is_saved_not_rebuilt() -> None:
    def program(x, *weights):
        for w in weights:
            x = x + F.layer_norm(x, (16,)) @ w
        return x.sum()

    joint = joint_of(program, leaf(4, 16), *[leaf(16, 16) for _ in range(6)])
    saved = set(MinCut()(joint).saved)
    made_by = {value.name: node for node in joint.graph.nodes for value in node.results}
    sums = {name for name in saved if name in made_by and made_by[name].target == "aten.add.Tensor"}
    assert len(sums) == 5


@pytest.mark.parametrize("products", [1, 2, 3])
def test_what_a_saved_value_is_made_of_is_computed_again(products: int) -> None:
    """Of a norm: its operand, the factor of each row, and what the products read; not what lies between."""

    def program(x, first, scale, *weights):
        x = x @ first
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale
        parts = [F.linear(normed, w) for w in weights]
        return sum(part.sum() for part in parts)

    inputs = [leaf(32, 16), leaf(16, 16), leaf(16), *[leaf(16, 16) for _ in range(products)]]
    assert parts_of(program, *inputs).partition.saved_bytes == 4 * (2 * 32 * 16 + 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_a_maximum_is_looked_for_in_is_saved(dtype: torch.dtype) -> None:
    def program(x):
        y = x / x.norm(dim=-1, keepdim=True)
        return (y - y.amax(-1, keepdim=True)).exp().sum(-1)

    x = torch.randn(5, 10, 5).to(dtype).requires_grad_()
    equal = [node for node in joint_of(program, x).graph.nodes if node.target == "aten.eq.Tensor"]
    sought = {name for node in equal for name in node_references(node)}
    assert sought
    assert sought.isdisjoint(parts_of(program, x).partition.recomputed)


def test_bfloat16_source_is_saved_not_its_float32_copy() -> None:
    def program(x, w):
        return ((x @ w).float() * 3).square().sum()

    inputs = [t.detach().bfloat16().requires_grad_() for t in (leaf(16, 16), leaf(16, 16))]
    assert parts_of(program, *inputs).partition.saved_bytes == 16 * 16 * 2


def test_a_wider_copy_is_never_saved() -> None:
    def program(x, *weights):  # the copies are used early and late in the backward
        for gate, up, down in zip(*[iter(weights)] * 3, strict=True):
            wide = (x @ gate).float()
            x = x + ((wide * wide.sigmoid()).bfloat16() * (x @ up)) @ down
        return x.sum()

    inputs = [t.detach().bfloat16().requires_grad_() for t in [leaf(16, 16) for _ in range(10)]]
    for partitioner in ("min_cut", MinCut(longest_life=0)):
        parts = parts_of(program, *inputs, partitioner=partitioner)
        copies = {node.results[0].name for node in parts.forward.nodes if node.target == "aten._to_copy.default"}
        wide = {value.name for value in parts.backward.inputs if value.type.dtype == "float32"}
        assert len(copies) == 6
        assert not copies & wide


def test_on_a_gpu_a_transcendental_is_cheaper_than_any_saved_value() -> None:
    def program(x, w):
        return ((x @ w).tanh() * 3).square().sum()

    inputs = [t.detach().bfloat16().requires_grad_() for t in (leaf(16, 16), leaf(16, 16))]
    capture = capture_by_torch_function(program, inputs)[0]
    moved = decode(encode(capture).replace(b'"cpu"', b'"cuda:0"'), "capture")
    needs = {name: needs_of(AotGrad().joint(one)) for name, one in (("cpu", capture), ("cuda", moved))}
    costs = {
        name: [Policy().element_cost(node) for node in found.producers.values() if node.target == "aten.tanh.default"]
        for name, found in needs.items()
    }
    assert costs == {"cpu": [17], "cuda": [6]}


def wide_values_saved(activation, layers: int, device: str = "cuda:0", least: int = 0, after: int = 1) -> list[str]:
    """What makes the values of 64 x 64 that are saved, in a network of 64 x 16."""

    def program(x, wide, narrow, *weights):
        for w in weights[:after]:
            x = F.linear(F.silu(x), w)
        x = F.linear(activation(F.linear(x, wide)), narrow)
        for w in weights[after:]:
            x = F.linear(F.silu(x), w)
        return x.sum()

    inputs = [leaf(64, 16), leaf(64, 16), leaf(16, 64), *[leaf(16, 16) for _ in range(layers)]]
    capture = capture_by_torch_function(program, inputs)[0]
    joint = AotGrad().joint(decode(encode(capture).replace(b'"cpu"', f'"{device}"'.encode()), "capture"))
    made = {value.name: node for node in joint.graph.nodes for value in node.results if value.type.shape == (64, 64)}
    saved = MinCut(least_large=least)(joint).saved
    return sorted(packet_of(made[name].target) for name in saved if name in made)


def test_a_large_operand_is_computed_again_on_a_gpu() -> None:
    """A sixteenth to an eighth of what is saved, made of what is saved anyway."""
    assert wide_values_saved(F.silu, 16) == ["aten.mm"]
    assert wide_values_saved(F.silu, 16, device="cpu") == ["aten.mm", "aten.silu"]


@pytest.mark.parametrize(
    "small",
    [{"layers": 4}, {"layers": 64}, {"layers": 16, "least": 1 << 20}, {"layers": 16, "after": 16}],
    ids=["all are large", "not large", "few bytes", "used first"],
)
def test_an_operand_is_saved_where_to_compute_it_again_is_worth_little(small: dict[str, int]) -> None:
    assert wide_values_saved(F.silu, **small) == ["aten.mm", "aten.silu"]


def test_a_large_operand_is_saved_and_not_in_its_place_what_it_is_made_of() -> None:
    assert wide_values_saved(lambda x: torch.cat(x.split(32, 1), 1), 16) == ["aten.cat"]


def test_dropout_saves_a_mask_of_one_byte_and_never_draws_again() -> None:
    parts = parts_of(lambda x, w: F.dropout((x @ w).exp(), 0.3).sum(), leaf(16, 16), leaf(16, 16))
    assert not any(is_random(node) for node in parts.backward.nodes)
    assert parts.partition.saved_bytes == 16 * 16 * (1 + 4)


# Halves.


@pytest.mark.parametrize(
    "partitioner",
    [
        "save_everything",
        MinCut(save_operands=False),
        MinCut(longest_life=0),
        MinCut(memory_budget=0),
        MinCut(memory_budget=0.5),
    ],
    ids=repr,
)
@settings(max_examples=25, deadline=None)
@given(drawn=programs())
def test_every_partition_means_the_same(partitioner: object, drawn: tuple[Capture, list[torch.Tensor]]) -> None:
    capture, inputs = drawn
    assume(not eager_refuses_backward(capture, inputs))
    try:
        AotGrad().run(capture)
    except (NoInverse, UnsupportedOutput):
        reject()
    check_against_eager(capture, inputs, partition=Options(partitioner=partitioner))


def test_partition_of_too_little_is_refused() -> None:
    def nothing(joint: Joint) -> Partition:
        return Partition(())

    with pytest.raises(PartitionError, match="not among the saved") as raised:
        parts_of(lambda x: x.exp().sum(), leaf(4), partitioner=nothing)
    assert raised.value.code == "AG011"
    with pytest.raises(PartitionError, match="bernoulli"):
        parts_of(lambda x: F.dropout(x, 0.5).sum(), leaf(4), partitioner=nothing)


def test_partition_that_names_nothing_known_is_refused() -> None:
    with pytest.raises(PartitionError, match="no value nowhere"):
        parts_of(lambda x: x.exp().sum(), leaf(4), partitioner=lambda joint: Partition(("nowhere",)))


@pytest.mark.parametrize("choice", ["best", 3, None])
def test_unknown_partitioner_is_refused(choice: object) -> None:
    with pytest.raises(BadPartitioner, match="min_cut, save_everything"):
        parts_of(lambda x: x.exp().sum(), leaf(4), partitioner=choice)


def test_partitioner_that_returns_no_partition_is_refused() -> None:
    with pytest.raises(BadPartitioner, match="returned a list"):
        parts_of(lambda x: x.exp().sum(), leaf(4), partitioner=lambda joint: ["x0"])


def test_partitioners_by_name_train_alike() -> None:
    def program(x, w):
        return (F.gelu(x @ w) * 2).sum()

    gradients = []
    for name in ("min_cut", "save_everything"):
        torch.manual_seed(0)
        x, w = leaf(4, 4), leaf(4, 4)
        capture, inputs = capture_by_torch_function(program, [x, w])
        bind_interpreted(cut(AotGrad().run(capture), Options(partitioner=name)))(*inputs)[0].backward()
        gradients.append((x.grad, w.grad))
    torch.testing.assert_close(*gradients)


# The backward for some of the tangents.


def test_a_loss_beside_its_logits_needs_no_gradient_of_the_logits() -> None:
    def program(x, w):
        logits = x @ w
        return logits, F.cross_entropy(logits, torch.tensor([1, 0, 2]))

    inputs = [leaf(3, 4), leaf(4, 5)]
    parts = parts_of(program, *inputs)
    whole, part = executor(parts.backward), partial_backward(parts, (False, True))
    assert part is not None
    assert len(part.forward.inputs) == len(parts.backward.inputs) - 1
    assert not any(node.target.startswith(("aten.add", "aten.zeros", "aten.full")) for node in part.forward.nodes)
    constants = [read_constant(constant) for constant in parts.binding.constants]
    results = executor(parts.forward)(*inputs, *constants)
    given = [*inputs, *constants]
    saved = [results[s.result] if isinstance(s, SavedResult) else given[s.input] for s in parts.binding.saved]
    expected = whole(*saved, torch.zeros(3, 5), torch.tensor(2.0))
    torch.testing.assert_close(executor(part.forward)(*saved, torch.tensor(2.0)), expected)


def test_gradients_that_depend_on_missing_tangents_alone_are_none() -> None:
    parts = parts_of(lambda x, y: (x.exp(), y.sin()), leaf(3), leaf(3))
    part = partial_backward(parts, (True, False))
    assert part is not None
    assert part.forward.outputs[1] is None
    assert [node.target for node in part.forward.nodes] == ["aten.mul.Tensor"], "x.exp() is a result, and so read"
