"""Sizes and numbers that data decides are values of one graph."""

import itertools
import math
import sys

import pytest
import torch

from bytecap import executor, interpret, optimize
from bytecap.errors import CannotCapture


class Backend:
    """An eager back end that takes what data decides; it keeps the captures."""

    takes_data_sizes = True

    def __init__(self):
        self.captures = []

    def __call__(self, capture, inputs):
        self.captures.append(capture)
        return executor(capture)


def selects(x):
    mask = x > 0
    kept = x[mask]
    return kept.sum() / mask.sum().item(), kept.shape[0], kept * 2 - x[mask], torch.cat([kept, x[~mask]])


def lists_places(x):
    places = (x > 0).nonzero()
    rows, columns = torch.where(x > 0.5)
    return places, rows + columns, len(places.shape), places.numel(), places.size()


def trains_on_selected(x):
    kept = x[x[:, 0] > 0]
    hidden = torch.nn.functional.linear(kept, torch.ones(3, 6)).relu()
    return hidden.softmax(-1).sum(), kept.view(-1, 3, 2), kept.reshape(kept.shape[0] * 2, 3), kept.t() @ kept


def writes_selected(x):
    mask = x[:, 0] > 0
    filled = torch.zeros_like(x)
    filled[mask] = x[mask] * 2
    return filled


def makes_tensors(x):
    count = int(x.max().item()) + 3
    return torch.arange(count).float() @ torch.ones(count, 2), x[:count]


def computes_with_floats(x):
    total = x.sum().item()
    half = -total / 2 + 1
    return {"half": half, "scaled": x * half, "root": math.sqrt(abs(total)), "places": [total, int(total)]}


def bounded(x):
    count = max(int((x > 0).sum()), 1)
    return x.sum() / count, min(count, 3)


def lists_numbers(x):
    numbers = x[0].tolist()
    return numbers, x * numbers[0]


def counts(x):
    whole = (x.abs() * 3).long().flatten()
    return (
        torch.unique(whole),
        whole.unique(return_counts=True)[1],
        torch.bincount(whole),
        torch.masked_select(x, x > 0),
    )


def repeats(x):
    return x[0].repeat_interleave(torch.arange(6) % 3 + (x[1] > 0).long())


def broadcasts(x):
    return x * x[torch.arange(4) < 4].sum(1, keepdim=True) + x[x[:, 0] < 9][:, :1]


def fills(x):
    return x[torch.eye(6, dtype=torch.bool)[:4]].view(2, 2) * 2


def clips(x):
    norm = x.detach().norm().item()
    return x * min(1.0, 3.0 / (norm + 1e-6)), max(norm, 0.5, norm * 2)


def views_what_is_left(x):
    others = ~torch.eye(6, dtype=torch.bool)[:4]
    return x[others].view(4, 5), x.masked_select(others).view(4, -1), x[others].reshape(-1, 5).sum(0)


def counts_groups(x):
    groups = (x[:, 0] > 0).long() + 1
    number = int(groups.max()) + 1
    return torch.bincount(groups, minlength=number), x.new_zeros(number, 6).index_add_(0, groups, x)


def fills_a_queue(x):
    queue, place = torch.zeros(6, 8), (x[0, 0] > 0).long() * 4
    start = int(place)
    queue[:, start : start + 4] = x.detach().T
    place.fill_((start + 4) % 8)
    return queue * x.sum(), place


def expands(x):
    count = int((x > 0).sum())
    return x[:1, :1].expand(count, 3).sum(0), x[:1].expand(count, -1), x.new_ones(1).expand(count) * 2


def compares_with_a_float(x):
    largest = x.max().item()
    return (
        x >= largest,
        x.clamp(max=largest / 2),
        torch.full((2,), largest),
        x.masked_fill(x > 0, largest),
        x == largest,
    )


def gives_floats_to_torch(x):
    number = abs(x.sum().item()) + 0.5
    return (
        torch.nn.functional.layer_norm(x, (6,), eps=number),
        torch.nn.functional.leaky_relu(x, number),
        torch.add(x, x, alpha=number),
        x.abs() ** number,
        torch.tensor([number, 1.0]),
    )


ADDS_ONE_BY_ONE = sys.version_info < (3, 12)
"""Later `sum` compensates the rounding of floats, which no number of a graph does."""


def computes_by_all_operators(x):
    number, other, count = x.sum().item(), x.abs().max().item() + 1, int((x > 0).sum())
    whole = number // other, number % other, number // 2, 7 // other, 7 % other
    waves = math.sin(number), math.cos(number), math.tanh(number), math.pow(other, 0.5), math.exp(-other)
    rounded = math.floor(number), math.ceil(number), math.trunc(number), int(number / 2), +number
    total = sum([number, other, 2] if ADDS_ONE_BY_ONE else [count, 2])
    return whole, waves, rounded, total, count / 2, count * other, float(count), 1 - number


PROGRAMS = [
    gives_floats_to_torch,
    computes_by_all_operators,
    compares_with_a_float,
    expands,
    fills_a_queue,
    clips, views_what_is_left, counts_groups,
    selects, lists_places, trains_on_selected, writes_selected, makes_tensors, computes_with_floats, bounded,
    lists_numbers, counts, repeats, broadcasts, fills,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph_serves_all_data(program):
    backend = Backend()
    compiled = optimize(program, backend, fullgraph=True)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(4, 6)
        twin = x.clone().requires_grad_()
        x.requires_grad_()
        expected, found = program(twin), compiled(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        for result in (expected, found):
            sums = [part.sum() for part in _tensors(result) if part.requires_grad]
            if sums:
                sum(sums).backward()
        torch.testing.assert_close(x.grad, twin.grad, rtol=0, atol=0)
    assert len(backend.captures) == 1
    # The reference meaning is the same, from a saved document too.
    given = torch.randn(4, 6, requires_grad=True)
    capture = backend.captures[0]
    first = interpret(capture, [given])
    for one, other in zip(executor(capture)(given), first, strict=True):
        torch.testing.assert_close(one, other)


def _tensors(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [part for item in tree for part in _tensors(item)] if isinstance(tree, (tuple, list)) else []


def branches(x):
    return x if x.sum().item() > 0 else -x


def loops(x):
    return [x * i for i in range(int(x.abs().sum()))]


def asks_for_one(x):
    kept = x[x > 0]
    return kept.squeeze() if kept.shape[0] == 1 else kept


def squeezes(x):
    return x[x[:, 0] > 0].squeeze()


def asks_layout(x):
    return x[x[:, 0] > 0].t().is_contiguous()


def iterates(x):
    return [row * 2 for row in x[x[:, 0] > 0]]


def says(x):
    return f"{x.sum().item():.2f}", x * 2


def raises_to_a_power(x):
    return x.sum().item() ** 0.5


REFUSED = [raises_to_a_power, branches, loops, asks_for_one, squeezes, asks_layout, iterates, says]


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_what_needs_the_number_is_refused(program):
    with pytest.raises(CannotCapture) as caught:
        optimize(program, Backend(), fullgraph=True)(torch.randn(4, 6))
    assert caught.value.code == "BC004"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_graphs_that_may_end_go_on_too(program):
    backend = Backend()
    compiled = optimize(program, backend)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 6)
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    assert len(backend.captures) == 1


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_what_needs_the_number_ends_a_graph_that_may_end(program):
    compiled = optimize(program, Backend())
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.randn(4, 6) + seed % 2
        assert repr(compiled(x)) == repr(program(x))


class EndsAtData(Backend):
    breaks_at_data = True


@pytest.mark.parametrize("program", [selects, computes_with_floats, writes_selected], ids=lambda each: each.__name__)
def test_other_backends_end_their_graphs_there(program):
    x = torch.randn(4, 6)
    with pytest.raises(CannotCapture, match="BC004"):
        optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)(x)
    backend = EndsAtData()
    torch.testing.assert_close(optimize(program, backend)(x), program(x), rtol=0, atol=0)
    targets = {node.target for capture in backend.captures for node in capture.graph.nodes}
    assert not targets & {"torch.Tensor.size", "torch.Tensor.item"}


def test_a_size_that_is_not_as_another_ends_the_graph_where_it_may_end():
    """Taken for equal, found to differ: such calls run plain, and graphs end there after some of them."""

    def program(x):
        return (x[x > 0] + x[x < 0]).sum() * 2

    events = []
    compiled = optimize(program, Backend(), on_event=events.append)
    for data in ([1.0, -1.0], [1.0, -1.0, 2.0, 3.0], [1.0, -2.0]) * 4:
        x = torch.tensor(data)
        try:
            expected = program(x)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x)
        else:
            assert compiled(x) == expected


def test_a_number_in_a_buffer_is_guarded_where_graphs_may_end():
    module = torch.nn.Module()
    module.register_buffer("steps", torch.tensor(0))

    def program(x):
        return x * 2 if module.steps.item() < 100 else x * 3

    backend = Backend()
    assert optimize(program, backend)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert [node.target for capture in backend.captures for node in capture.graph.nodes] == ["operator.mul"]


def test_state_is_written_with_what_data_decides():
    class Counter:
        seen = 0
        loss = 0.0

    counter = Counter()

    def program(x):
        counter.seen = counter.seen + (x > 0).sum().item()
        counter.loss = x.mean().item() + 0.5 * counter.loss
        return x * 2

    compiled = optimize(program, Backend(), fullgraph=True)
    expected = 0.0
    for data in ([1.0, -1.0, 2.0], [1.0, -3.0, -2.0]):
        compiled(torch.tensor(data))
        expected = torch.tensor(data).mean().item() + 0.5 * expected
    assert (counter.seen, counter.loss) == (3, expected)
    assert type(counter.seen) is int


def test_empty_and_single_selections():
    compiled = optimize(trains_on_selected, Backend(), fullgraph=True)
    for sign in (-1, 1):
        x = torch.full((4, 6), float(sign))
        torch.testing.assert_close(compiled(x), trains_on_selected(x))
    x = torch.full((4, 6), -1.0)
    x[2] = 1.0
    torch.testing.assert_close(compiled(x), trains_on_selected(x))


def slices(x):
    kept = x[x[:, 0] > 0]
    later, sooner, rest = kept[1:], kept[:-1], kept[-3:]
    return later - sooner, later.shape[0], sooner.shape[0], rest.shape[0], kept[:2].shape[0], kept[::2].shape[0]


def slices_by_numbers(x):
    count = int(x[:, 0].sum())
    return x[:count], x[:count].shape[0], x[count + 3 :].shape[0]


def squeezes_known_dimensions(x):
    places = (x[:, 0] > 0).nonzero().squeeze(-1)
    return x[places] * 2, places.shape[0], x[:, None][x[:, 0] > 0].squeeze(dim=1)


def check_at_all_counts(program, least=0.0):
    """One capture serves inputs of which 0 to 4 rows are positive; no element is nearer to zero than `least`."""
    backend = Backend()
    compiled = optimize(program, backend, fullgraph=True)
    for rows in range(5):
        x = torch.where(torch.arange(4)[:, None] < rows, 1.0, -1.0) * (torch.rand(4, 6) + least)
        torch.testing.assert_close(compiled(x), program(x))
    assert len(backend.captures) == 1


@pytest.mark.parametrize(
    "program", [slices, slices_by_numbers, squeezes_known_dimensions], ids=lambda each: each.__name__
)
def test_slices_have_the_length_that_data_gives_them(program):
    check_at_all_counts(program)


def counts_up(x):
    """Places of a flat buffer of as many parts as the greatest index says, with one element more at its end."""
    rows = (x > 0).sum(1)
    parts, longest = int(rows.max()) + 1, int((x > 0.5).sum(1).max())
    counts = rows.new_zeros(parts).scatter_add_(0, rows, torch.ones_like(rows))
    sums = rows.new_zeros(parts + 1)
    torch.cumsum(counts, 0, out=sums.narrow(0, 1, parts))
    flat = torch.ones(parts * longest + 1, 2)[: parts * longest]
    return sums, flat.view(parts, longest, 2).sum(1)


def slices_by_tensors(x):
    ends = torch.stack([(x[:, 0] > 0).sum(), (x > 0).any(1).sum(), torch.tensor(4)]).sort().values
    out = x.new_zeros(4, 2)
    for start, end in itertools.pairwise(ends):
        out[start:end] = x[start:end] @ torch.ones(6, 2)
    return out, x[ends[0] :].sum()


def makes_others_of_selected(x):
    kept = x[x > 0]
    return kept.new_full((10,), -1.0), kept.new_full((2,), 3)


@pytest.mark.parametrize(
    "program", [counts_up, slices_by_tensors, makes_others_of_selected], ids=lambda each: each.__name__
)
def test_sizes_of_made_tensors_are_not_negative(program):
    check_at_all_counts(program)


def test_a_number_is_read_again_of_a_tensor_that_was_written():
    def program(x):
        total = (x > 0).sum()
        first, second = total.item(), total.item()
        total += 2
        return first, second, total.item(), x * first + second

    backend = Backend()
    compiled = optimize(program, backend, fullgraph=True)
    for sign in (1, -1):
        x = torch.arange(6.0) * sign
        torch.testing.assert_close(compiled(x), program(x))
    (capture,) = backend.captures
    assert [node.target for node in capture.graph.nodes].count("torch.Tensor.item") == 2


def test_a_negative_size_is_refused_as_eager_does():
    compiled = optimize(lambda x: torch.zeros(int(x.sum()) + 1)[: int(x.sum()) + 1], Backend(), fullgraph=True)
    assert compiled(torch.ones(3)).shape == (4,)
    with pytest.raises(RuntimeError, match="negative"):
        compiled(-torch.ones(3))


def states_facts(x):
    count = int((x[:, 0] > 0).sum())
    torch._check(count >= 0)
    torch._check(count <= x.shape[0], lambda: "too many")
    return x[:count] * 2, x[:count].shape[0], count + 1, count > 4


def states_equality(x):
    first, second = x[x[:, 0] > 0], x[x[:, 0].sign() > 0]
    torch._check(first.shape[0] == second.shape[0])
    return first + second, (first * second).shape[0]


def returns_a_condition(x):
    return x + 1, int((x > 0).sum()) > 6


@pytest.mark.parametrize(
    "program", [states_facts, states_equality, returns_a_condition], ids=lambda each: each.__name__
)
def test_facts_that_always_hold(program):
    check_at_all_counts(program, least=0.1)


def needs_four(x):
    kept = x[x[:, 0] > 0]
    torch._check(kept.shape[0] == 4, lambda: f"{kept.shape[0]} rows")
    return kept * x, kept.view(4, 2, 3)


def needs_some(x):
    kept = x[x[:, 0] > 0]
    if kept.shape[0] == 0:
        raise ValueError("nothing is left")
    assert kept.shape[0] > 1, "one row is too few"
    return kept * 2 if kept.shape[0] > 1 else kept


@pytest.mark.parametrize("program", [needs_four, needs_some], ids=lambda each: each.__name__)
def test_facts_are_checked_in_each_call(program):
    compiled = optimize(program, Backend(), fullgraph=True)
    for rows in (4, 3, 0, 1, 4):
        x = torch.where(torch.arange(4)[:, None] < rows, 1.0, -1.0) * (torch.rand(4, 6) + 0.1)
        try:
            expected = program(x)
        except (RuntimeError, ValueError, AssertionError) as error:
            with pytest.raises(type(error), match=str(error) or None):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), expected)


def test_a_missing_fact_is_named_with_what_to_write():
    with pytest.raises(CannotCapture, match=r"whether count == 1 depends on data(.|\n)*torch\._check"):
        optimize(asks_for_one, Backend(), fullgraph=True)(torch.randn(4, 6))


def test_a_little_that_is_written_is_copied_before_each_call():
    """A counter beside 12 numbers that are read, and an int that is an input, too: one graph."""

    def program(x, count, n):
        count.add_(n)
        return x[x > 0] * count

    backend = Backend()
    backend.takes_symbols = True
    compiled = optimize(program, backend, dynamic=True)
    count, twin = torch.zeros(()), torch.zeros(())
    for seed in range(2, 5):
        x = torch.randn(12, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(compiled(x, count, seed), program(x, twin, seed))
        assert torch.equal(count, twin)
    assert len(backend.captures) == 1


def test_a_graph_that_writes_its_inputs_ends_at_data_if_it_may():
    """Else the inputs would be copied before each call."""

    def program(x):
        x.add_(1)
        return x.sum().item() * x

    backend = Backend()
    compiled = optimize(program, backend)
    for _ in range(2):
        x, twin = torch.ones(3), torch.ones(3)
        assert torch.equal(compiled(x), program(twin))
        assert torch.equal(x, twin)
    assert not any(node.target == "torch.Tensor.item" for capture in backend.captures for node in capture.graph.nodes)
