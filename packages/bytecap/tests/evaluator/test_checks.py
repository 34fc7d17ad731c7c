"""Branches on data of which one side raises: captured whole, checked when the graph has run, undone where they fail.

PYTEST_DONT_REWRITE: the asserts of the programs are to be what the program says.
"""

import traceback
import warnings

import pytest
import torch
from torch import nn

from bytecap import Broke, Captured, executor, optimize
from bytecap.errors import DataDependent
from bytecap.testing.breaking import forced_breaks, once
from bytecap.testing.oracle import check, observe
from stagewire.codec import decode, encode
from stagewire.verify import verify


class Watched:
    """An optimized function with the captures that it made."""

    def __init__(self, function, *, fullgraph=True):
        self.captures = []
        self.events = []
        self.calls = 0
        self.call = optimize(function, self.backend, fullgraph=fullgraph, on_event=self.events.append)

    def backend(self, capture, inputs):
        verify(capture)
        self.captures.append(decode(encode(capture)))
        run = executor(capture)

        def counted(*tensors):
            self.calls += 1
            return run(*tensors)

        return counted

    def __call__(self, *args, **kwargs):
        return self.call(*args, **kwargs)


def raised(function, *args, **kwargs):
    with pytest.raises(Exception) as info:
        function(*args, **kwargs)
    lines = [(frame.name, frame.lineno) for frame in traceback.extract_tb(info.value.__traceback__)]
    return type(info.value), info.value.args, lines[-1]


def positive(x):
    assert (x > 0).all(), "only positive numbers"
    return x.log()


def finite(x, message="not finite"):
    if not torch.isfinite(x).all():
        raise ValueError(message, x.shape)
    return x * 2


def no_nan(x):
    if torch.isnan(x).any():
        raise FloatingPointError("nan")
    return x.sum()


def two(x, y):
    assert (x > 0).all() and (y > 0).all()  # noqa: PT018
    assert x.max() < 100
    return x + y


def truthy(x):
    assert x.sum()
    return x + 1


def small(x):
    torch._assert((x < 10).all(), "too large")
    return x - 1


def all_of(x):
    torch._check_tensor_all(x > 0)
    return x - 1


def all_with(x):
    torch._check_tensor_all_with(ValueError, x.sum() > 0, lambda: f"sum {x.sum()}")
    return x - 1


GOOD, BAD = torch.tensor([1.0, 2.0]), torch.tensor([1.0, -2.0])
NAN = torch.tensor([1.0, float("nan")])


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (positive, (GOOD,), (BAD,)),
        (finite, (GOOD,), (NAN,)),
        (finite, (GOOD, "gone"), (NAN, "gone")),
        (no_nan, (BAD,), (NAN,)),
        (two, (GOOD, GOOD + 1), (GOOD, BAD)),
        (two, (GOOD, GOOD + 1), (GOOD * 100, GOOD)),
        (truthy, (GOOD,), (GOOD * 0,)),
        (truthy, (NAN,), (GOOD * 0,)),
        (small, (GOOD,), (GOOD * 10,)),
        (all_of, (GOOD,), (BAD,)),
        (all_with, (GOOD,), (BAD,)),
    ],
)
def test_the_good_side_is_captured_whole_and_the_bad_one_raises_as_plain(function, good, bad):
    watched = Watched(function)
    torch.testing.assert_close(watched(*good), function(*good), equal_nan=True)
    assert raised(watched, *bad) == raised(function, *bad)
    torch.testing.assert_close(watched(*good), function(*good), equal_nan=True)
    assert len(watched.captures) == 1
    assert watched.calls == 3
    assert len(watched.captures[0].checks) == 1


def test_the_first_call_may_be_the_bad_one():
    watched = Watched(positive)
    assert raised(watched, BAD) == raised(positive, BAD)
    assert torch.equal(watched(GOOD), positive(GOOD))
    assert len(watched.captures) == 1


def test_a_check_names_its_line_and_is_an_output():
    watched = Watched(positive)
    watched(GOOD)
    capture = watched.captures[0]
    (found,) = capture.checks
    assert [line.line for line in found.lines] == [positive.__code__.co_firstlineno + 1]
    assert found.output == len(capture.graph.outputs) - 1


def test_the_traceback_has_no_other_frame():
    def outer(x):
        return positive(x)

    plain, captured = observe(outer, ((BAD,), {})), observe(Watched(outer), ((BAD,), {}))
    own = [line for line in captured.lines if line[0] in ("outer", "positive")]
    assert own == [line for line in plain.lines if line[0] in ("outer", "positive")]
    assert captured.lines[-1] == plain.lines[-1]
    assert captured.error.__context__ is None


def test_a_condition_that_is_known_is_no_check():
    def program(x):
        assert torch.tensor(True)
        return x + 1

    watched = Watched(program)
    watched(GOOD)
    assert watched.captures[0].checks == ()


@pytest.mark.parametrize("name", ["", "_index", "_value", "_type", "_not_implemented"])
@pytest.mark.parametrize("message", [None, lambda: "too short"])
def test_a_check_of_what_is_known_raises_as_plain(name, message):
    def program(x):
        getattr(torch, f"_check{name}")(x.shape[0] > 2, *([] if message is None else [message]))
        return x + 1

    watched = Watched(program)
    assert raised(watched, GOOD) == raised(program, GOOD)
    assert torch.equal(watched(torch.ones(3)), program(torch.ones(3)))
    assert len(watched.captures) == 1


def test_a_tensor_of_several_elements_has_no_truth():
    def program(x):
        assert x > 0
        return x + 1

    with pytest.raises(RuntimeError, match="more than one value"):
        optimize(program, lambda capture, inputs: executor(capture))(GOOD)


def test_the_condition_is_of_its_moment():
    def program(x):
        ok = (x > 0).all()
        assert ok
        ok.logical_not_()
        return x + 1, ok

    watched = Watched(program)
    result, ok = watched(GOOD)
    assert torch.equal(result, GOOD + 1)
    assert not ok


# -- what has to be undone


def write_before(x, seen):
    seen.add_(1)
    assert (x > 0).all()
    return x + seen


def write_behind(x, seen):
    assert (x > 0).all()
    seen.add_(1)
    return x + seen


@pytest.mark.parametrize("function", [write_before, write_behind])
def test_written_inputs_are_as_plain_wherever_the_check_stands(function):
    watched = Watched(function)
    for x in (GOOD, BAD, GOOD, BAD):
        theirs, ours = torch.zeros(2), torch.zeros(2)
        plain = observe(function, ((x, theirs), {}))
        captured = observe(watched.call, ((x, ours), {}))
        assert type(plain.error) is type(captured.error)
        assert torch.equal(ours, theirs)
        assert ours._version == theirs._version
    assert len(watched.captures) == 1


def test_statistics_of_a_norm_are_undone():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            y = self.norm(x)
            assert (y < 1.3).all()
            return y

    plain, model = Model(), Model()
    watched = Watched(model)
    good, bad = torch.tensor([[1.0] * 3, [2.0] * 3, [3.0] * 3]), torch.tensor([[0.0] * 3, [0.0] * 3, [9.0] * 3])
    for x in (good, bad, good):
        for one, call in ((plain, plain), (model, watched)):
            with pytest.raises(AssertionError) if x is bad else warnings.catch_warnings():
                call(x)
            assert one.norm.num_batches_tracked
    torch.testing.assert_close(dict(plain.named_buffers()), dict(model.named_buffers()))
    assert len(watched.captures) == 1


def test_the_random_stream_is_undone():
    def program(x):
        noise = torch.rand(3)
        assert (x > 0).all()
        return x.sum() + noise

    watched = Watched(program)
    watched(GOOD)
    streams = []
    for call in (program, watched):
        torch.manual_seed(3)
        raised(call, BAD)
        streams.append(torch.rand(2))
    assert torch.equal(*streams)


def test_effects_happen_once():
    def program(x, log, names):
        log.append("entered")
        names["count"] = names.get("count", 0) + 1
        print("before")
        assert (x > 0).all()
        log.append("left")
        print("behind")
        return x + 1

    watched = Watched(program)
    for x in (GOOD, BAD, GOOD):
        plain = observe(program, ((x, [], {}), {}))
        captured = observe(watched.call, ((x, [], {}), {}))
        assert plain.arguments[0][1:] == captured.arguments[0][1:]
        assert plain.printed == captured.printed
        assert type(plain.error) is type(captured.error)


def test_what_fails_behind_the_check_is_not_seen():
    def program(x):
        assert (x > 0).all(), "first"
        return torch.linalg.cholesky(x)

    watched = Watched(program)
    good = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    torch.testing.assert_close(watched(good), torch.linalg.cholesky(good))
    for bad in (-good, torch.tensor([[1.0, 2.0], [2.0, 1.0]])):
        assert raised(watched, bad)[:2] == raised(program, bad)[:2]


def test_history_that_cannot_be_undone_ends_the_graph():
    def program(x, y):
        assert (x > 0).all()
        y.mul_(x)
        return y.sum()

    watched = Watched(program, fullgraph=False)
    for x in (GOOD, BAD):
        leaves = [torch.ones(2, requires_grad=True) for _ in range(2)]
        outcomes = [
            observe(call, ((x, leaf * 1), {})) for call, leaf in zip((program, watched.call), leaves, strict=True)
        ]
        assert type(outcomes[0].error) is type(outcomes[1].error)
        assert [event.error.code for event in watched.events if isinstance(event, Broke)] == ["BC004"]
    with pytest.raises(DataDependent):
        Watched(program)(GOOD, torch.ones(2, requires_grad=True) * 1)


# -- frames of every form


def test_arguments_of_every_kind_reach_the_plain_run():
    scale = 3

    def program(a, /, b, *rest, c=1, **named):
        assert (a > 0).all(), (b, rest, c, sorted(named), scale)
        return a * b * scale

    watched = Watched(program)
    assert torch.equal(watched(GOOD, 2, 4, 5, c=6, d=7), GOOD * 6)
    assert raised(watched, BAD, 2, 4, 5, c=6, d=7) == raised(program, BAD, 2, 4, 5, c=6, d=7)
    assert raised(Watched(program), BAD, 2)[1] == ((2, (), 1, [], 3),)


def test_cells_and_free_variables_are_the_frames():
    count = 0

    def program(x, y):
        nonlocal count
        count += 1

        def inner():
            assert (x > 0).all(), count
            return x + y

        return inner()

    watched = Watched(program)
    watched(GOOD, 1)
    assert count == 1
    assert raised(watched, BAD, 1)[1] == (2,)
    assert count == 2


def test_a_caught_exception_takes_its_way():
    def program(x):
        try:
            if (x < 0).any():
                raise ValueError("negative")
        except ValueError:
            return x.abs()
        return x.sqrt()

    watched = Watched(program)
    for x in (GOOD, BAD, GOOD):
        torch.testing.assert_close(watched(x), program(x))


def test_a_check_in_front_of_a_break_and_one_behind_it():
    def program(x):
        assert (x > 0).all(), "first"
        y = x * 2
        if y.sum() > 5:
            y = y + 1
        assert (y < 100).all(), "second"
        return y.cos()

    good, large = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 99.0])
    watched = Watched(program, fullgraph=False)
    torch.testing.assert_close(watched(good), program(good))
    for bad in (BAD, large):
        assert raised(watched, bad) == raised(program, bad)
    torch.testing.assert_close(watched(good), program(good))
    assert sum(len(capture.checks) for capture in watched.captures) >= 2


@pytest.mark.parametrize("count", range(0, 24, 2))
def test_breaks_anywhere_around_a_check(count):
    def program(x, log):
        log.append(1)
        if not torch.isfinite(x).all():
            raise ValueError("no")
        log.append(2)
        return x * len(log)

    for x in (GOOD, NAN):
        with forced_breaks(once(count)):
            captured = observe(Watched(program, fullgraph=False).call, ((x, []), {}))
        plain = observe(program, ((x, []), {}))
        assert plain.arguments[0][1] == captured.arguments[0][1]
        assert (plain.error is None) is (captured.error is None)
        assert plain.error is not None or torch.equal(plain.result, captured.result)


def test_data_that_raises_again_and_again_ends_graphs_there():
    watched = Watched(finite, fullgraph=False)
    for _ in range(5):
        assert raised(watched, NAN) == raised(finite, NAN)
    assert torch.equal(watched(GOOD), finite(GOOD))
    assert [event.error.code for event in watched.events if isinstance(event, Broke)] == ["BC004"]
    assert next(len(event.capture.checks) for event in watched.events if isinstance(event, Captured)) == 1


def test_other_branches_end_the_graph_as_before():
    def program(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.raises(DataDependent):
        Watched(program)(GOOD)


def test_gradients_flow_past_a_check():
    def program(x, w):
        y = x * w
        assert torch.isfinite(y).all()
        return y.sin().sum()

    watched = Watched(program)
    theirs, ours = (GOOD.clone().requires_grad_() for _ in range(2))
    program(theirs, GOOD).backward()
    watched(ours, GOOD).backward()
    torch.testing.assert_close(theirs.grad, ours.grad)


def test_generated_comparison_agrees():
    report = check(lambda: (finite, ((GOOD.clone(),), {})))
    assert report.codes == ()
