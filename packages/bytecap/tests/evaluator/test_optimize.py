"""optimize(): owners, guards, recompilation, the limit, refusals, fullgraph, threads."""

from __future__ import annotations

import collections
import contextlib
import gc
import linecache
import logging
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytecap
from bytecap import Broke, Captured, CaptureWarning, LimitReached, Refused, executor, optimize
from bytecap.errors import BadOption, DataDependent, RaisedInCapture, RecompileLimit
from stagewire.errors import StageError


class Backend:
    """Counts what it is given; runs it eagerly."""

    def __init__(self):
        self.captures = []

    def __call__(self, capture, example_inputs):
        assert [tuple(tensor.shape) for tensor in example_inputs] == [item.value.type.shape for item in capture.inputs]
        self.captures.append(capture)
        return executor(capture)


def test_the_graph_runs_in_the_frames_place():
    calls = []

    def backend(capture, example_inputs):
        def run(x):
            calls.append(x)
            return (x + 100,)

        return run

    double = optimize(lambda x: x * 2, backend, fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(double(x), x + 100)
    assert torch.equal(double(x), x + 100)
    assert len(calls) == 2
    assert calls[0] is x


def test_names_and_signature_of_the_target():
    def scale(x, factor=2):
        """Scaled x."""
        return x * factor

    call = optimize(scale, Backend())
    assert (call.__name__, call.__doc__, call.__wrapped__) == ("scale", "Scaled x.", scale)
    assert torch.equal(call(torch.ones(2), factor=3), torch.full((2,), 3.0))


def test_a_method_in_a_class_body():
    backend = Backend()

    class Scaler:
        def __init__(self, factor):
            self.factor = factor

        def apply(self, x):
            return x * self.factor

        apply = optimize(apply, backend, fullgraph=True)

    assert torch.equal(Scaler(2.0).apply(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(Scaler(3.0).apply(torch.ones(2)), torch.full((2,), 3.0))
    assert len(backend.captures) == 2


def test_a_bound_method_a_partial_and_a_callable_object():
    import functools

    class Adder:
        def __init__(self, amount):
            self.amount = amount

        def __call__(self, x):
            return x + self.amount

    x = torch.ones(2)
    assert torch.equal(optimize(Adder(2), Backend(), fullgraph=True)(x), x + 2)
    assert torch.equal(optimize(Adder(2).__call__, Backend(), fullgraph=True)(x), x + 2)
    assert torch.equal(optimize(functools.partial(torch.add, x), Backend(), fullgraph=True)(x), x + x)


def test_a_module_through_its_call_with_hooks():
    model = nn.Linear(2, 2)
    backend = Backend()
    call = optimize(model, backend, fullgraph=True)
    x = torch.randn(3, 2)
    assert torch.equal(call(x), model(x))
    handle = model.register_forward_hook(lambda module, inputs, output: output * 2)
    assert torch.equal(call(x), model(x))
    handle.remove()
    assert torch.equal(call(x), model(x))
    assert len(backend.captures) == 2
    assert {item.role for item in backend.captures[0].inputs} == {"parameter", "tensor"}


def test_gradients_reach_the_parameters():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    call = optimize(model, Backend(), fullgraph=True)
    x = torch.randn(5, 3)
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    call(x).sum().backward()
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_recompiles_with_a_one_sentence_reason():
    events = []

    def scale(x, factor):
        return x * factor

    call = optimize(scale, Backend(), on_event=events.append)
    x = torch.ones(2)
    for factor in (2, 2, 3, 2):
        assert torch.equal(call(x, factor), x * factor)
    assert torch.equal(call(torch.ones(3), 2), torch.full((3,), 2.0))
    assert [type(event) for event in events] == [Captured] * 3
    assert events[0].reason is None
    assert events[1].reason.startswith("factor was 2 and is 3 (read at ")
    assert events[2].reason.startswith("x.shape[0] was 2 and is 3 (read at ")


def test_owners_do_not_mix():
    def f(x):
        return x + 1

    ones = optimize(f, lambda capture, inputs: lambda x: (torch.ones(1),))
    zeros = optimize(f, lambda capture, inputs: lambda x: (torch.zeros(1),))
    x = torch.full((1,), 5.0)
    for _ in range(2):
        assert ones(x).item() == 1
        assert zeros(x).item() == 0
        assert f(x).item() == 6


def test_an_optimized_function_inside_another_is_part_of_its_graph():
    inner_backend, outer_backend = Backend(), Backend()
    inner = optimize(lambda x: x * 2, inner_backend, fullgraph=True)
    outer = optimize(lambda x: inner(x) + 1, outer_backend, fullgraph=True)
    assert torch.equal(outer(torch.ones(2)), torch.full((2,), 3.0))
    assert (len(inner_backend.captures), len(outer_backend.captures)) == (0, 1)
    assert len(outer_backend.captures[0].graph.nodes) == 2


def test_the_backend_is_not_asked_again_for_the_same_work():
    backend, events = Backend(), []
    settings = {"mode": None}

    def f(x):
        if settings["mode"] is None:
            settings["mode"] = "found"
        return x * 2

    call = optimize(f, backend, on_event=events.append)
    call(torch.ones(2))
    call(torch.ones(2))
    assert [event.reused for event in events] == [False, True]
    assert len(backend.captures) == 1


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_backend_that_registers_a_class_is_not_asked_again(fullgraph):
    """What imports of a backend register with abstract classes is part of what `isinstance` relied on."""

    class Registering(Backend):
        def __call__(self, capture, example_inputs):
            collections.abc.Sized.register(type("New", (), {}))
            return super().__call__(capture, example_inputs)

    backend, events = Registering(), []
    own = Own(2.0)
    call = optimize(lambda x: x if isinstance(own, collections.abc.Sized) else x * 2, backend, fullgraph=fullgraph,
                    on_event=events.append)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert call(torch.ones(2)).tolist() == [2.0, 2.0]
    assert [event.reused for event in events] == [False, True]
    assert "cache_token" in events[1].reason
    assert len(backend.captures) == 1


class Own(float):
    """An instance of no abstract class."""


@pytest.mark.parametrize("function", [torch.sin, torch.Tensor.sin, F.gelu])
def test_a_function_of_torch_is_named_by_the_line_that_calls_it(function):
    backend = Backend()
    call = optimize(function, backend, fullgraph=True)
    call(torch.ones(2))
    (node,) = backend.captures[0].graph.nodes
    assert node.line.file == __file__
    assert node.line.function == "test_a_function_of_torch_is_named_by_the_line_that_calls_it"
    assert "call(torch.ones(2))" in linecache.getline(__file__, node.line.line)


def test_a_module_of_torch_keeps_its_own_lines():
    backend = Backend()
    optimize(nn.Sequential(nn.ReLU()), backend, fullgraph=True)(torch.ones(2))
    (node,) = backend.captures[0].graph.nodes
    assert node.line.function == "ReLU.forward"


class OnSymbols:
    takes_symbols = takes_data_sizes = True

    def __init__(self):
        self.captures = []

    def __call__(self, capture, inputs):
        self.captures.append(capture)
        return executor(capture)


def test_what_was_made_for_one_module_serves_equal_ones():
    experts = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3) for name in "abc"})
    experts["wide"] = torch.nn.Linear(3, 4)
    backend, events = OnSymbols(), []
    call = optimize(lambda x, name: experts[name](x).relu(), backend, on_event=events.append)
    for _ in range(2):
        for name in ("a", "b", "c", "wide", "a"):
            x = torch.randn(2, 3)
            assert torch.equal(call(x, name), experts[name](x).relu())
    assert [event.reused for event in events] == [False, True, True, False]
    assert len(backend.captures) == 2


def test_it_is_not_taken_for_inputs_that_need_another_gradient():
    backend, events = Backend(), []
    leaf = torch.ones(3, requires_grad=True)
    pair = [leaf, leaf * 2]

    def write(x, place):
        return pair[place].detach() * x, pair[place] * 2

    call = optimize(write, backend, on_event=events.append)
    for place in (0, 1):
        call(torch.ones(3), place)[1].sum().backward()
    assert leaf.grad.tolist() == [6.0, 6.0, 6.0]
    assert [event.reused for event in events] == [False, False]


def test_a_backend_can_ask_for_its_own_inputs():
    def backend(capture, inputs):
        run = executor(capture)

        def call(*given):
            return run(*given)

        call.keeps_inputs = True
        return call

    layers, events = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)], []
    call = optimize(lambda x, place: layers[place](x) + 1, backend, on_event=events.append)
    for place in (0, 1):
        call(torch.ones(2, 3), place)
    assert [event.reused for event in events] == [False, False]


def test_sizes_that_data_decided_are_open_behind_a_break():
    backend, events = OnSymbols(), []

    def program(x):
        kept = x[x > 0]
        bytecap.graph_break()
        return kept.cos() * 2 + 1

    call = optimize(program, backend, on_event=events.append)
    for count in (4, 2, 3):
        x = torch.where(torch.arange(5) < count, 1.0, -1.0)
        assert torch.equal(call(x), x[x > 0].cos() * 2 + 1)
    assert len(backend.captures) == 2


def test_past_the_limit_new_cases_run_plain_with_one_warning():
    backend = Backend()

    def scale(x, factor):
        return x * factor

    call = optimize(scale, backend, recompile_limit=2)
    x = torch.ones(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for factor in (1, 2, 3, 4, 1):
            assert torch.equal(call(x, factor), x * factor)
    assert len(backend.captures) == 2
    assert [item.category for item in caught] == [CaptureWarning]
    assert "BC010" in str(caught[0].message)
    assert "factor was" in str(caught[0].message)


def test_the_limit_as_event_and_under_fullgraph():
    events = []

    def scale(x, factor):
        return x * factor

    call = optimize(scale, Backend(), recompile_limit=1, on_event=events.append)
    for factor in (1, 2, 3):
        call(torch.ones(2), factor)
    assert [type(event) for event in events] == [Captured, LimitReached]
    strict = optimize(scale, Backend(), recompile_limit=1, fullgraph=True)
    strict(torch.ones(2), 1)
    with pytest.raises(RecompileLimit, match="BC010"):
        strict(torch.ones(2), 2)


def branch(x):
    y = x + 1
    if y.sum() > 0:
        return y
    return -y


def test_a_break_is_logged_once_and_warns_nobody(caplog):
    call = optimize(branch, Backend())
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "bytecap"):
        warnings.simplefilter("error")
        for value in (1.0, -5.0, 1.0):
            assert torch.equal(call(torch.full((2,), value)), branch(torch.full((2,), value)))
        call(torch.ones(3))
    (record,) = caplog.records
    text = record.getMessage()
    line = branch.__code__.co_firstlineno + 2
    assert "BC004" in text
    assert f"{__file__}:{line} in branch" in text
    assert "fix: " in text


def test_a_callable_that_runs_plain_warns_once():
    def numbers(x):
        yield locals()["x"]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call = optimize(numbers, Backend())
        assert [list(call(1)), list(call(2))] == [[1], [2]]
    (warning,) = caught
    assert "BC007" in str(warning.message)


def test_a_break_in_a_module_warns_nobody(caplog):
    class Branching(nn.Module):
        def forward(self, x):
            return branch(x) * 2

    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "bytecap"):
        warnings.simplefilter("error")
        assert torch.equal(optimize(Branching(), Backend())(torch.ones(2)), branch(torch.ones(2)) * 2)
    assert not any("runs plain" in record.getMessage() for record in caplog.records)


def test_a_break_is_not_looked_into_again_while_its_guards_hold():
    events = []
    call = optimize(branch, Backend(), on_event=events.append)
    for _ in range(3):
        call(torch.ones(2))
    assert len([event for event in events if isinstance(event, Broke)]) == 1


def test_another_path_of_a_broken_function_is_captured():
    backend, events = Backend(), []

    def f(x, checked):
        return branch(x) if checked else x * 2

    call = optimize(f, backend, on_event=events.append)
    x = torch.ones(2)
    for checked in (True, False, True, False):
        assert torch.equal(call(x, checked), f(x, checked))
    assert isinstance(events[0], Broke | Refused)
    own = [event for event in events if isinstance(event, Captured) and event.capture.code.name == f.__qualname__]
    assert len(own) == 1
    assert isinstance(events[-1], Captured)


def test_fullgraph_raises_the_refusal_each_time():
    call = optimize(branch, Backend(), fullgraph=True)
    for _ in range(2):
        with pytest.raises(DataDependent, match="BC004"):
            call(torch.ones(2))


def test_errors_of_the_program_are_its_own_even_under_fullgraph():
    def f(x):
        if x.shape[0] != 2:
            raise ValueError(f"want 2 rows, got {x.shape[0]}")
        return x * 2

    call = optimize(f, Backend(), fullgraph=True)
    with pytest.raises(ValueError, match="want 2 rows, got 3"):
        call(torch.ones(3))
    assert torch.equal(call(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("call_number", [1, 2])
def test_what_raises_in_capture_but_not_plain_is_an_error_under_fullgraph(call_number):
    # torch.compiler.is_compiling() is true in captured code alone: it stands for a fault of the evaluator.
    def f(first, /, x, *more, scale=2, **named):
        if torch.compiler.is_compiling():
            raise KeyError("captured")
        return x * scale

    strict, lenient = optimize(f, Backend(), fullgraph=True), optimize(f, Backend(), on_event=lambda event: None)
    for _ in range(call_number):
        with pytest.raises(RaisedInCapture, match="BC005"):
            strict(1, torch.ones(2), 3, scale=4, other=5)
        assert torch.equal(lenient(1, torch.ones(2), 3, scale=4, other=5), torch.full((2,), 4.0))


def test_errors_of_the_backend_propagate_and_nothing_is_kept():
    attempts = []

    def backend(capture, example_inputs):
        attempts.append(capture)
        if len(attempts) == 1:
            raise ZeroDivisionError("backend")
        return executor(capture)

    call = optimize(lambda x: x * 2, backend)
    with pytest.raises(ZeroDivisionError, match="backend"):
        call(torch.ones(2))
    assert torch.equal(call(torch.ones(2)), torch.full((2,), 2.0))


def test_a_fault_in_a_kernel_is_told_where_the_function_runs_plain_without_it():
    def backend(capture, example_inputs):
        def run(*inputs):
            raise TypeError("no such kernel")

        return run

    call = optimize(lambda x: x * 2, backend)
    with pytest.warns(CaptureWarning, match=r"raised, the function runs plain: TypeError: no such kernel"):
        torch.testing.assert_close(call(torch.ones(2)), torch.full((2,), 2.0))


def test_a_fault_of_the_code_of_a_graph_is_raised():
    """At once, with nothing done; behind a plain run where its cause may be the data, whose error is then the
    function's own."""

    class Fault(StageError):
        code, is_fault = "XX001", True

    def backend(cause):
        def run(*inputs):
            raise Fault("of a kernel") from cause

        return lambda capture, example_inputs: run

    seen = []

    def f(x):
        y = x * 2
        bytecap.graph_break()
        seen.append(x)
        return y

    for cause, runs in ((TypeError("no such kernel"), 0), (ValueError("no such value"), 1)):
        seen.clear()
        with pytest.raises(Fault, match="of a kernel"):
            optimize(f, backend(cause))(torch.ones(2))
        assert len(seen) == runs
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        optimize(lambda x, i: x[i], backend(ValueError("no such value")))(torch.ones(2), torch.tensor([7]))


def test_a_backend_that_changes_what_is_guarded():
    state = {"factor": 2}

    def backend(capture, example_inputs):
        state["factor"] += 1
        return executor(capture)

    def f(x):
        return x * state["factor"]

    events = []
    assert torch.equal(optimize(f, backend, on_event=events.append)(torch.ones(2)), torch.full((2,), 4.0))
    assert events[1].reason.startswith("state['factor'] was 2 and is 3")  # captured once more
    assert "state['factor'] was 3 and is 4" in events[-1].error.message
    with pytest.raises(bytecap.CannotCapture, match="BC000"):
        optimize(f, backend, fullgraph=True)(torch.ones(2))


def test_nothing_is_evaluated_twice():
    log = []

    class Noted:
        @property
        def value(self):
            log.append("read")
            return 2

    noted = Noted()
    call = optimize(lambda x: x * noted.value, Backend())
    for count in (1, 2, 3):
        call(torch.ones(2))
        assert len(log) == count


def test_bad_options():
    with pytest.raises(BadOption, match=r"BC013.*recompile_limit=0"):
        optimize(branch, Backend(), recompile_limit=0)


def test_many_threads_compile_once():
    backend = Backend()
    call = optimize(lambda x, n: x * n, backend, fullgraph=True)
    start = threading.Barrier(6)

    def work(n):
        start.wait(10)
        return [call(torch.ones(2), n % 2) for _ in range(20)]

    with ThreadPoolExecutor(6) as pool:
        for n, results in enumerate(pool.map(work, range(6))):
            assert all(torch.equal(result, torch.ones(2) * (n % 2)) for result in results)
    assert len(backend.captures) in (1, 2)  # a thread runs plain while another one captures
    assert [call(torch.ones(2), n).tolist() for n in (0, 1)] == [[0, 0], [1, 1]]
    assert len(backend.captures) == 2


def test_modes_are_put_back_after_a_refusal():
    def f(x):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x.t()).sum().item()

    call = optimize(f, Backend(), on_event=lambda event: None)
    call(torch.ones(2, 3))
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_interpret_is_the_meaning_of_what_was_captured():
    backend = Backend()

    def f(x, y):
        a, b = torch.split(x, 1)
        with torch.no_grad():
            c = a * y
        return torch.cat([a + b, c]).sum()

    x, y = torch.randn(2, 3), torch.randn(3)
    optimize(f, backend, fullgraph=True)(x, y)
    (capture,) = backend.captures
    (result,) = bytecap.interpret(capture, (x, y))
    assert torch.equal(result, f(x, y))
    with pytest.raises(bytecap.errors.InterpretError, match="BC012"):
        bytecap.interpret(capture, (x,))
    with pytest.raises(bytecap.errors.InterpretError, match="BC012"):
        executor(capture)(x)


@pytest.mark.parametrize(
    "function", [lambda x: x * 2, branch, lambda x: x @ torch.ones(7)], ids=["whole", "refused", "raises"]
)
def test_nothing_keeps_the_tensors_of_a_call(function):
    call = optimize(function, Backend(), on_event=lambda event: None)
    x = torch.ones(2)
    with contextlib.suppress(RuntimeError):
        call(x)
    kept = weakref.ref(x)
    del x
    gc.collect()
    assert kept() is None


def test_a_dropped_callable_takes_its_captures_with_it():
    compiled = []

    def backend(capture, example_inputs):
        run = executor(capture)
        compiled.append(weakref.ref(run))
        return run

    call = optimize(lambda x: x * 2, backend)
    call(torch.ones(2))
    assert compiled[0]() is not None
    del call
    gc.collect()
    assert compiled[0]() is None


class Counter(torch.nn.Module):
    """Writes an attribute, a buffer's place and a list, and prints."""

    def __init__(self):
        super().__init__()
        self.count, self.log = 0, []
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x):
        self.count += 1
        self.total = self.total + x
        self.log.append(self.count)
        print("counted")
        return x * 2


def test_a_capture_says_what_it_does_besides_its_graph(capsys):
    events = []
    optimize(Counter(), lambda capture, inputs: executor(capture), on_event=events.append)(torch.ones(2))
    assert events[0].effects == (
        ("write", "self"),
        ("write", "self._buffers"),
        ("write", "self.log"),
        ("call", "print"),
    )
    events.clear()
    norm = torch.nn.BatchNorm1d(3)
    optimize(norm, lambda capture, inputs: executor(capture), on_event=events.append)(torch.ones(2, 3))
    assert events[0].effects == ()
