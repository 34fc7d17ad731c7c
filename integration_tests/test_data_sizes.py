"""Data decides sizes, under fullgraph: one graph of the default back end equals eager for all data, both ways."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stagefold


def masks(x):
    mask = x > 0
    kept = x[mask]
    return kept.exp().sum() * 2, kept * kept + 1, torch.cat([kept, x[~mask]]).softmax(0), x.masked_select(x > 0.5)


def places(x):
    rows = (x[:, 0] > 0).nonzero(as_tuple=True)[0]
    chosen = x[rows].tanh() * 2
    return torch.zeros_like(x).index_add(0, rows, chosen) + 1, x.index_select(0, rows).relu().sum(0), rows * 2 + 1


def distinct(x):
    whole = (x * 2).long()
    values, places, counts = torch.unique(whole, return_inverse=True, return_counts=True)
    sums = torch.zeros(values.shape[0]).scatter_add(0, places.flatten(), x.flatten())
    return values * 2 + 1, (sums / counts).exp() + 1, torch.bincount(whole.abs().flatten()) * 2


def repeated(x):
    times = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    return x.repeat_interleave(times, dim=0).sin() * 2, x[0].repeat_interleave(torch.arange(6))


def numbers(x):
    count = int((x > 0).sum())
    positions = torch.arange(count) * 2.0 + 1
    return (
        positions.sum() * x.square().sum(),
        x.new_ones(count, 3).cumsum(0) * 2,
        x * count + count,
        x.flatten()[:count].exp() * 2,
    )


def lists(x):
    first, second = (x[:2] > 0).sum(1).tolist()
    parts = torch.split((x.sin() * 2).flatten(), [first, second, 24 - first - second])
    return [part.cos() * 2 + 1 for part in parts]


def floats(x):
    scale = min(1.0, 3.0 / (x.norm().item() + 1e-6))
    y = (x * scale).sin()
    return y * scale + 1, y.clamp(max=scale) * 2, torch.full((3,), scale) + y[0, :3], math.sqrt(abs(scale))


def padded(x):
    lengths = (x[:, 0].abs() * 3).long() + 1
    longest = int(lengths.max())
    mask = torch.arange(longest) < lengths[:, None]
    return mask.float() * x[:, :1], x.new_zeros(4, longest).masked_fill(mask, 2.0).softmax(-1)


def written(x):
    y = x * 2
    y[y > 1] = 0.5
    y.add_((y > 0).sum().item()).mul_(2)
    left = y.view(-1)[y.view(-1) > 3]
    y.mul_(3)
    return y, left * 2 + 1


def dropped(x):
    return F.dropout(x[x[:, 0] > 0].exp() + 1, 0.5), torch.rand_like(x) * 2 + 1


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)) for _ in range(3))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return (out,)


class MaskedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        scores, target = self.head(x), x[:, 0].abs().long() % 5
        keep = target != 0
        return F.cross_entropy(scores[keep], target[keep]), (scores[keep].argmax(-1) == target[keep]).sum()


PROGRAMS = [masks, places, distinct, repeated, numbers, lists, floats, padded, written, dropped]
MODULES = [Experts, MaskedLoss]


def data():
    for seed in range(3):
        yield torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    yield torch.full((4, 6), -1.0)
    yield torch.full((4, 6), 1.0)
    one = torch.full((4, 6), -1.0)
    one[2, 0] = 1.0
    yield one


def run(program, x):
    torch.manual_seed(0)
    given = x.clone().requires_grad_()
    found = list(program(given))
    torch.stack([part.float().sum() for part in found if getattr(part, "requires_grad", False)]).sum().backward()
    return found, given.grad


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_functions(program):
    compiled = stagefold.compile(program, fullgraph=True)
    for x in data():
        torch.testing.assert_close(run(compiled, x), run(program, x), equal_nan=True)


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: kind.__name__)
def test_modules(kind):
    torch.manual_seed(0)
    model = kind()
    compiled = stagefold.compile(model, fullgraph=True)
    for x in data():
        results = []
        for program in (compiled, model):
            model.zero_grad()
            results.append((run(program, x), [parameter.grad for parameter in model.parameters()]))
        torch.testing.assert_close(results[0], results[1], equal_nan=True, rtol=1e-4, atol=1e-5)


def test_sizes_of_inputs_and_of_data():
    def program(x):
        kept = x[x[:, 0] > 0]
        return (kept @ x.t()).softmax(-1) @ x, kept.sum(0) * x.shape[0]

    compiled = stagefold.compile(program, fullgraph=True)
    for rows in (4, 7, 9, 20, 5):
        x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows))
        torch.testing.assert_close(run(compiled, x), run(program, x))


def test_gradients_of_gradients():
    def program(x):
        kept = x[x > 0]
        return (kept.sin() * kept * kept).exp().sum()

    compiled = stagefold.compile(program, fullgraph=True)
    for x in data():
        results = []
        for call in (compiled, program):
            given = x.clone().requires_grad_()
            (first,) = torch.autograd.grad(call(given), given, create_graph=True)
            (second,) = torch.autograd.grad((first**2).sum(), given)
            results.append((first, second))
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-3)


def test_without_gradients():
    compiled = stagefold.compile(masks, fullgraph=True)
    with torch.no_grad():
        for x in data():
            torch.testing.assert_close(compiled(x), masks(x))


def test_without_fullgraph_graphs_end_where_the_data_is_needed():
    compiled = stagefold.compile(masks)
    for x in data():
        torch.testing.assert_close(run(compiled, x), run(masks, x), equal_nan=True)


def test_a_part_knows_no_size_that_it_does_not_name():
    linear = nn.Linear(5, 4)
    pointer = torch.full((1,), 3)

    def program(x):
        keys = linear(x)
        queue = keys.new_zeros(4, 12)
        start = int(pointer)
        queue[:, start : start + 2] = keys.T[:, :2].detach()
        return (keys @ queue).tanh().sum(1)

    compiled = stagefold.compile(program, fullgraph=True, dynamic=True)
    for count in (4, 6):
        x = torch.randn(count, 5)
        torch.testing.assert_close(compiled(x), program(x))


SELECTED = {
    "max": lambda x: x.max(),
    "argmin": lambda x: x.argmin(),
    "aminmax": lambda x: x.aminmax()[0],
    "amax": lambda x: x.amax(0),
    "max of a dimension": lambda x: x.max(0)[0],
    "the largest norm": lambda x: torch.linalg.vector_norm(x, math.inf),
    "computed": lambda x: (x.exp() * 2).max() + 1,
    "argmax of computed": lambda x: (x.exp() * 2).argmax() + 1,
    "behind two": lambda x: (x[2:].exp() * 2).max() + 1,
    "a quarter": lambda x: (x[: x.shape[0] // 4].exp() * 2).argmin() + 1,
    "unused": lambda x: ((x.exp() * 2).max(), x.sum())[1],
}


@pytest.mark.parametrize("name", SELECTED)
def test_what_has_no_value_of_nothing_is_refused(name):
    """Data selects no element: eager refuses the reduction, and says so in its own words."""

    def program(x):
        return SELECTED[name](x[x > 0])

    compiled = stagefold.compile(program, fullgraph=True)
    for count in (8, 0, 2, 3, 1, 8, 0):
        x = torch.where(torch.arange(8) < count, torch.arange(8) + 1.0, -1.0)
        results = []
        for call in (program, compiled):
            try:
                results.append(call(x).tolist())
            except (IndexError, RuntimeError) as error:
                results.append((type(error), str(error)))
        assert results[0] == results[1]


@pytest.mark.filterwarnings("ignore:.*runs plain, since its backward will raise", "error:the graph of")
def test_a_part_that_takes_no_symbols_is_made_for_each_size():
    def f(x):
        y = x.pow(2)
        loss = F.smooth_l1_loss(x, y, reduction="none")
        y.relu_()
        return loss, torch.bincount(torch.tensor([1, 1, 4])) * 2

    compiled = stagefold.compile(f, fullgraph=True)
    for size in (3, 4, 5):
        x = torch.randn(size, requires_grad=True)
        for found, expected in zip(compiled(x), f(x), strict=True):
            torch.testing.assert_close(found, expected)
