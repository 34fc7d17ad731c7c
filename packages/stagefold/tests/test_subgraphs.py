"""A program in which data decides sizes is cut where the data has to be there, and is right for all data."""

import warnings

import pytest
import torch
from torch._higher_order_ops import scan

import stagefold
from bytecap import optimize
from primops import Primops
from stagefold.backend import StagefoldBackend
from stagefold.errors import RunsPlain
from stagefold.options import parse_options
from stagefold.subgraphs import cut
from stagewire.errors import StageError
from stagewire.graph import last_mentions


class Refused(StageError):
    """What a stage says that takes no such program."""

    code = "XX001"
    refuses_program = True


class Counting:
    """The default back end, with what it was given and what it gave."""

    takes_symbols = takes_data_sizes = True

    def __init__(self):
        self.backend = StagefoldBackend(parse_options(None, None))
        self.captures, self.calls = [], []

    def __call__(self, capture, inputs):
        self.captures.append(capture)
        self.calls.append(self.backend(capture, inputs))
        return self.calls[-1]

    @property
    def parts(self):
        """The calls of the parts of the first program."""
        return self.calls[0].__self__.calls


def selected(x):
    y = x.sin() * 2
    kept = y[y > 0.5]
    return kept.exp().sum() + 1, kept * kept + 1


def given(count):
    """Eight numbers, `count` of which are selected."""
    return torch.where(torch.arange(8) < count, 0.7, -0.7).requires_grad_()


def same(compiled, program, x):
    twin = x.detach().clone().requires_grad_(x.requires_grad)
    found, expected = compiled(x), program(twin)
    torch.testing.assert_close(found, expected, equal_nan=True)
    if x.requires_grad:
        for results in (found, expected):
            sum(result.sum() for result in results).backward()
        torch.testing.assert_close(x.grad, twin.grad, equal_nan=True)


def test_a_part_is_compiled_once_for_all_counts_but_none_and_one():
    backend = Counting()
    compiled = optimize(selected, backend, fullgraph=True)
    for count in (0, 1):
        same(compiled, selected, given(count))
    first, _, second, _ = backend.parts
    assert (len(first.variants), len(second.variants)) == (1, 0)
    for count in (5, 2, 8, 1, 0, 3):
        same(compiled, selected, given(count))
    assert (len(backend.captures), len(backend.backend.reports)) == (1, 2)
    assert (len(first.variants), len(second.variants), second.failures) == (1, 1, 0)


def test_the_cut():
    backend = Counting()
    optimize(selected, backend, fullgraph=True)(given(3))
    parts = cut(backend.captures[0])
    assert [part.compiled for part in parts] == [True, False, True, False]
    assert [[node.target.rpartition(".")[2] for node in part.capture.graph.nodes] for part in parts] == [
        ["sin", "mul", "gt"],
        ["__getitem__", "size"],
        ["exp", "sum", "add", "mul", "add"],
        [],
    ]
    assert parts[2].unknown == ("count",)
    assert set(parts[2].inputs) == {"getitem", "count"}


def test_few_calls_between_two_that_need_data_are_not_compiled():
    def program(x):
        kept = x[x > 0]
        return kept[kept > 1.0] + 1

    backend = Counting()
    optimize(program, backend, fullgraph=True)(given(3))
    assert [part.compiled for part in cut(backend.captures[0])] == [False, False]


def test_an_input_that_only_a_type_names_has_its_symbol():
    def program(x):
        return x[x > 0].narrow(0, 0, 2).exp() * 2

    compiled = optimize(program, Counting(), fullgraph=True)
    for count in (2, 5):
        torch.testing.assert_close(compiled(given(count)), program(given(count)))


def test_what_a_part_assumes_is_asked_of_each_call():
    def program(x, weight):
        kept = x[x > 0]
        return (kept * weight + 1).exp(), (kept.sin() * weight).sum()

    compiled = optimize(program, Counting(), fullgraph=True)
    weight = torch.arange(4.0)
    torch.testing.assert_close(compiled(given(4), weight), program(given(4), weight))
    torch.testing.assert_close(compiled(given(1), weight), program(given(1), weight))
    with pytest.raises(RuntimeError, match="must match"):
        compiled(given(3), weight)


def test_modes_follow_the_program():
    def program(x):
        with torch.no_grad():
            scale = (x[x > 0] * 2).exp().sum()
        with torch.autocast("cpu", torch.bfloat16):
            kept = x[x > 0]
            product = kept[:, None] @ kept[None]
            other = (product * 2).exp() @ product
        return (x * scale).sin(), product, other, other.float() @ product.float()

    compiled = optimize(program, Counting(), fullgraph=True)
    for count in (3, 0, 5):
        found, expected = compiled(given(count)), program(given(count))
        assert [each.dtype for each in found] == [each.dtype for each in expected]
        assert [each.requires_grad for each in found] == [each.requires_grad for each in expected]
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert not torch.is_autocast_enabled("cpu")


def test_modes_are_put_back_when_a_part_raises():
    def program(x, y):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return x[x > 0] + y[y > 0].reshape(-1, 1)[:4, 0].expand(4)

    compiled = optimize(program, Counting(), fullgraph=True)
    with pytest.raises(Exception):  # noqa: B017  (whichever call of the program refuses the sizes first)
        compiled(given(3), given(2))
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_what_no_stage_compiles_runs_plain_and_says_so_once():
    def refuse(document):
        raise Refused("this stage takes nothing")

    compiled = stagefold.compile(selected, fullgraph=True, stages={"loopir": refuse})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for count in (2, 3, 4, 5, 6, 7):
            same(compiled, selected, given(count))
    assert len([each for each in caught if issubclass(each.category, RunsPlain)]) == 2  # one for each part


def test_a_stage_that_takes_no_symbols_gets_sizes():
    def fixed(document):
        from loopir import LoopIR

        if document.binding.symbols:
            raise Refused("this stage takes no symbols")
        return LoopIR().run(document)

    compiled = stagefold.compile(selected, fullgraph=True, stages={"loopir": fixed})
    for count in (2, 3, 2, 4, 5, 6, 7):
        same(compiled, selected, given(count))


def test_values_go_after_their_last_use():
    assert last_mentions([(0, 1, 2), (1, 3), (0, 3)]) == [(2,), (1,), (0, 3)]


@pytest.mark.parametrize(("is_ours", "verify"), [(True, False), (True, True), (False, False)])
def test_a_fault_of_a_stage_is_told_and_raised_under_verify_or_if_it_is_none_of_ours(is_ours, verify, monkeypatch):
    def faulty(document, options=None):
        raise TypeError("no such thing\nat all")

    if is_ours:
        monkeypatch.setattr(Primops, "run", lambda self, *given: faulty(*given))
    stages = {} if is_ours else {"primops": faulty}
    backend = StagefoldBackend(parse_options(None, {"cache": False, "verify": verify}), stages)
    compiled = optimize(selected, backend, fullgraph=True)
    if verify or not is_ours:
        with pytest.raises(TypeError, match="no such thing"):
            compiled(given(5))
    else:
        with pytest.warns(RunsPlain, match="after a fault: TypeError: no such thing$"):
            same(compiled, selected, given(5))


def branched(x):
    y = x.sin() * 2
    y = torch.cond(y.sum() > 0, lambda: (y * x).exp() + x.shape[0], lambda: y.neg().tanh())
    return (y + 1).cos().sum(), y * y + 1


def test_control_flow_is_a_part_whose_functions_are_parts():
    backend = Counting()
    compiled = optimize(branched, backend, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(4), -torch.ones(5)):
        same(compiled, branched_plainly, x.requires_grad_())
    kinds = [[bool(part.bodies) or part.compiled for part in cut(capture)[:-1]] for capture in backend.captures]
    assert kinds == [[True, True, True]] * 2  # one for each size, then one for all
    _, part, _, _ = cut(backend.captures[1])
    assert [body.compiled for body in part.bodies] == [True, True]
    assert part.symbols
    assert [len(body.symbols) for body in part.bodies] == [1, 1]


def branched_plainly(x):
    y = x.sin() * 2
    y = (y * x).exp() + x.shape[0] if y.sum() > 0 else y.neg().tanh()
    return (y + 1).cos().sum(), y * y + 1


@pytest.mark.parametrize(("length", "is_part"), [(3, False), (200, True)])
def test_a_short_scan_is_compiled_as_it_stands(length, is_part):
    def program(x):
        return scan(lambda carry, row: ((carry + row).sin(), carry * row), torch.zeros(2), x * 2)[1].cos() + 1

    backend = Counting()
    x = torch.linspace(-1, 1, 2 * length).view(length, 2)
    optimize(program, backend, fullgraph=True)(x)
    (capture,) = backend.captures
    assert any(part.bodies for part in cut(capture)) == is_part
