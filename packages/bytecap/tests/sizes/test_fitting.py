"""Sizes that data decides and that a call needs to be equal: one graph where they are, else plain torch."""

import pytest
import torch

from bytecap import executor, optimize
from bytecap.errors import CannotCapture


class Backend:
    """An eager back end that takes what data decides; it counts the captures."""

    takes_data_sizes = True

    def __init__(self):
        self.captures = 0

    def __call__(self, capture, inputs):
        self.captures += 1
        return executor(capture)


def adds_selections(x, y):
    return x[x > 0] + y[y > 0]


def stacks_selections(x, y):
    return torch.stack([x[x > 0], y[y > 0], x[x > 0] * 2])


def writes_a_selection(x, y):
    kept = x[x > 0]
    kept[:] = y[y > 0]
    return kept * 2


def fits_what_is_known(x, y):
    return x[x > 0] * torch.arange(1.0, 4.0) + y.sum()


def splits_by_counts(x, y):
    counts = torch.zeros(3, dtype=torch.long).index_add(0, y.long().clamp(0, 2), torch.ones(4, dtype=torch.long))
    return [part * index for index, part in enumerate(x.split(counts.tolist()))]


def selects_and_broadcasts(x, y):
    return x[x > 0][:, None] - y[y > 0]


THREE, OTHER_THREE = torch.tensor([1.0, -2.0, 3.0, 4.0]), torch.tensor([0.0, 1.0, 2.0, 3.0])
FOUR, ONE = torch.tensor([1.0, 2.0, 1.0, 2.0]), torch.tensor([-1.0, 2.0, -3.0, -4.0])
PROGRAMS = [adds_selections, stacks_selections, writes_a_selection, fits_what_is_known, splits_by_counts]


def outcome(function, *given):
    try:
        return function(*[tensor.clone() for tensor in given])
    except RuntimeError as error:
        return [str(error)]


def _same(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph_where_they_fit_and_plain_torch_where_not(program):
    backend = Backend()
    call = optimize(program, backend, fullgraph=True)
    for given in ((THREE, OTHER_THREE), (OTHER_THREE, THREE), (THREE, FOUR), (FOUR, THREE), (THREE, ONE), (ONE, ONE)):
        found, expected = outcome(call, *given), outcome(program, *given)
        assert (type(found), len(found)) == (type(expected), len(expected))
        assert all(map(_same, found, expected))
    assert backend.captures == 1


def test_what_broadcasts_assumes_nothing():
    backend = Backend()
    call = optimize(selects_and_broadcasts, backend, fullgraph=True)
    for given in ((THREE, FOUR), (ONE, FOUR), (FOUR, OTHER_THREE)):
        assert torch.equal(call(*given), selects_and_broadcasts(*given))
    assert backend.captures == 1


def test_what_never_fits_is_refused():
    def program(x, y):
        kept = x[x > 0]
        return torch.cat([kept, kept]) + torch.cat([kept, kept, torch.ones(1)])[: 2 * kept.shape[0] + 1]

    with pytest.raises(CannotCapture, match="fit depends on data"):
        optimize(program, Backend(), fullgraph=True)(THREE, FOUR)
