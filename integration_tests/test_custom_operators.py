"""Operators of torch.library with fake kernels and gradients of their own, through all stages."""

from __future__ import annotations

import functools
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import stagefold
import stagewire
from aotgrad.tracer import custom_writers
from bytecap.events import CaptureWarning
from integration_tests.fresh_processes import run_script
from primops.stage import Primops


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_are_numbers(dynamic: bool) -> None:
    """A number among the results is known by the fake kernel: of sizes, or a constant."""
    library = torch.library.Library("stagefold_numbers", "DEF")
    library.define("halves(Tensor x) -> (Tensor, SymInt, float, Tensor)")
    for key in ("CPU", "Meta"):
        library.impl("halves", lambda x: (x[: len(x) // 2] * 2, len(x) // 2, 0.5, x + 1), key)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, int, float]:
        first, half, factor, rest = torch.ops.stagefold_numbers.halves(x)
        return first * half + rest[:half] * factor, half, factor

    compiled = stagefold.compile(program, fullgraph=True, dynamic=dynamic)
    for size in (6, 10, 7):
        x = torch.randn(size, 3)
        found, expected = compiled(x), program(x)
        torch.testing.assert_close(found[0], expected[0])
        assert found[1:] == expected[1:]


@pytest.fixture
def scaled_sum() -> Iterator[torch._ops.OpOverloadPacket]:
    """scaled_sum(x, w) = (x * w) summed over rows, its backward an operator too, as grouped products in models are."""
    forward = torch.library.custom_op(
        "stagefold_tests::scaled_sum",
        lambda x, w: (x * w).sum(0),
        mutates_args=(),
        schema="(Tensor x, Tensor w) -> Tensor",
    )
    backward = torch.library.custom_op(
        "stagefold_tests::scaled_sum_backward",
        lambda x, w, g: (g.expand_as(x) * w, (g.expand_as(x) * x).sum(0)),
        mutates_args=(),
        schema="(Tensor x, Tensor w, Tensor g) -> (Tensor, Tensor)",
    )
    forward.register_fake(lambda x, w: torch.empty(x.shape[1:], dtype=x.dtype))
    backward.register_fake(lambda x, w, g: (torch.empty_like(x), torch.empty_like(w)))

    def setup(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def gradient(ctx: torch.autograd.function.FunctionCtx, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ops.stagefold_tests.scaled_sum_backward(*ctx.saved_tensors, g)

    forward.register_autograd(gradient, setup_context=setup)
    yield torch.ops.stagefold_tests.scaled_sum
    forward._lib._destroy()
    backward._lib._destroy()


@pytest.mark.parametrize("backend", ["stagefold", "eager"])
def test_forward_and_backward(scaled_sum: torch._ops.OpOverloadPacket, backend: str) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return scaled_sum(torch.tanh(x), w).relu() + scaled_sum(x, w=w * 2)

    compiled = stagefold.compile(f, backend=backend, fullgraph=True)
    results = []
    for call in (f, compiled):
        torch.manual_seed(1)
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        y = call(x, w)
        y.square().sum().backward()
        results.append((y, x.grad, w.grad))
    for want, have in zip(*results, strict=True):
        torch.testing.assert_close(have, want)


@pytest.fixture
def writers() -> Iterator[dict[str, Callable[[torch.Tensor], object]]]:
    """Operators that write into an argument: one that returns nothing, one that returns a fresh tensor."""

    def double(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sum(0)

    def shifted(x: torch.Tensor, k: float) -> None:
        x.add_(k)

    shift = torch.library.custom_op(
        "stagefold_tests::shift", shifted,
        mutates_args={"x"}, schema="(Tensor(a!) x, float k) -> ()",
    )  # fmt: skip
    doubled = torch.library.custom_op(
        "stagefold_tests::double", double, mutates_args={"x"}, schema="(Tensor(a!) x) -> Tensor"
    )
    doubled.register_fake(lambda x: x.new_empty(x.shape[1:]))
    yield {"shift": lambda x: shift(x, 1.5), "double": doubled}
    shift._lib._destroy()
    doubled._lib._destroy()


@pytest.mark.parametrize("where", ["the input", "what is computed", "a view", "every other column"])
@pytest.mark.parametrize("name", ["shift", "double"])
def test_operators_that_write_are_part_of_the_graph(writers: dict[str, Callable], name: str, where: str) -> None:
    write = writers[name]

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        y = x if where == "the input" else x * 3
        part = {"a view": lambda: y[1], "every other column": lambda: y[:, ::2]}.get(where, lambda: y)()
        made = write(part)
        return [y * 2, *([] if made is None else [made + 1])]

    found = []
    for call in (program, stagefold.compile(program, fullgraph=True)):
        x = torch.arange(12.0).view(3, 4)
        results = call(x)
        found.append((results, x, x._version > 0))
    torch.testing.assert_close(found[1][:2], found[0][:2], rtol=0, atol=0)
    assert found[1][2] == found[0][2]


def test_gradients_pass_an_operator_that_writes(writers: dict[str, Callable]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        writers["shift"](y)
        return (y * x).sum()

    found = []
    for call in (program, stagefold.compile(program, fullgraph=True)):
        x = torch.linspace(0, 1, 4, requires_grad=True)
        call(x).backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


def test_operators_of_the_program_run_as_often_as_it_says_in_its_order(scaled_sum: torch._ops.OpOverloadPacket) -> None:
    seen: list[float] = []
    library = torch.library.Library("stagefold_tests", "FRAGMENT")
    library.define("note(Tensor x) -> Tensor")
    library.impl("note", lambda x: (seen.append(x.sum().item()), x.clone())[1], "CPU")
    library.impl("note", lambda x: torch.empty_like(x), "Meta")
    note = torch.ops.stagefold_tests.note

    def program(x: torch.Tensor) -> torch.Tensor:
        note(x)
        y, z = note(x * 2), note(x * 2)
        note(z)
        return y + 1

    found = []
    for call in (program, stagefold.compile(program, fullgraph=True)):
        seen.clear()
        result = call(torch.ones(3))
        found.append((result.tolist(), list(seen)))
    library._destroy()
    assert found[1] == found[0]


def test_threads_that_need_the_functional_form_of_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is registered in torch's table once."""
    shifted = torch.library.custom_op(
        "stagefold_tests::shift_in_threads", lambda x: x.add_(1) and None,
        mutates_args={"x"}, schema="(Tensor(a!) x) -> ()",
    )  # fmt: skip
    operator = torch.ops.stagefold_tests.shift_in_threads.default
    register = custom_writers._register
    start = threading.Barrier(4)

    def slowly(*args: Any) -> None:
        time.sleep(0.05)
        register(*args)

    def find(number: int) -> object:
        start.wait()
        return custom_writers._twin(operator)

    monkeypatch.setattr(custom_writers, "_register", slowly)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(find, range(4)))
    shifted._lib._destroy()
    assert len({id(one) for one in found}) == 1


def test_memory_that_nobody_has_written_is_not_copied() -> None:
    """An operator that writes into `torch.empty` makes it; written already, it is copied."""

    def fill(x: torch.Tensor, out: torch.Tensor, k: float) -> None:
        out.copy_(x * k)

    filled = torch.library.custom_op(
        "stagefold_tests::filled", fill, mutates_args={"out"}, schema="(Tensor x, Tensor(a!) out, float k) -> ()"
    )

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.empty_strided(x.shape, (1, x.shape[0]), dtype=torch.float64)
        filled(x + 1, out, 2.0)
        before = out * 1
        filled(before[:, ::2], out[:, ::2], k=3.0)
        return before, out

    grads: list[stagewire.Grad] = []

    def keep(grad: stagewire.Grad) -> stagewire.Prim:
        grads.append(grad)
        return Primops().run(grad)

    call = stagefold.compile(program, fullgraph=True, stages={"primops": keep})
    for size in (3, 5, 6):
        x = torch.arange(4.0 * size).view(size, 4)
        want, have = program(x), call(x)
        torch.testing.assert_close(have, want)
        assert have[1].stride() == want[1].stride()
    filled._lib._destroy()
    targets = [node.target for node in grads[0].joint.nodes]
    assert not any("empty" in target for target in targets)
    assert sum("_makes_out" in target for target in targets) == 1


@pytest.fixture
def list_writer() -> Iterator[Callable[..., torch.Tensor]]:
    """An operator that writes a list of tensors, and another tensor where it is given."""

    def write(xs: list[torch.Tensor], k: float, last: torch.Tensor | None = None) -> torch.Tensor:
        for number, x in enumerate(xs):
            x.mul_(k + number)
        if last is not None:
            last.add_(xs[0].sum())
        return xs[0].sum()

    made = torch.library.custom_op(
        "stagefold_tests::write_list", write, mutates_args={"xs", "last"},
        schema="(Tensor(a!)[] xs, float k, Tensor(b!)? last=None) -> Tensor",
    )  # fmt: skip
    made.register_fake(lambda xs, k, last=None: xs[0].new_empty(()))
    yield made
    made._lib._destroy()


def of_a_list(write: Callable[..., torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    y = x * 2
    return [write([y, y.cos(), x[1]], 3.0), y + 1, write([y], 2.0, x[0]), write([x[1]], 0.5, last=None), y]


def of_a_copy(write: Callable[..., torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    pieces = list(x.split(1))
    return [write(pieces, 2.0, pieces[0].clone()), *pieces]


@pytest.mark.parametrize("program", [of_a_list, of_a_copy])
def test_lists_and_optional_tensors_that_an_operator_writes(
    list_writer: Callable[..., torch.Tensor], program: Callable[..., list[torch.Tensor]]
) -> None:
    found = []
    call = functools.partial(program, list_writer)
    for function in (call, stagefold.compile(lambda x: program(list_writer, x), fullgraph=True)):
        x = torch.arange(12.0).view(3, 4)
        found.append((function(x), x))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_memory_that_an_operator_writes_twice(list_writer: Callable[..., torch.Tensor]) -> None:
    """Both writes are made to the memory itself: outside of the graph, which has copies."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        list_writer([y[:2], y[1:]], 3.0)
        return y

    x = torch.arange(12.0).view(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        torch.testing.assert_close(stagefold.compile(program)(x), program(x), rtol=0, atol=0)
    with pytest.raises(stagefold.StageError, match="by two of its arguments"):
        stagefold.compile(lambda x: program(x), fullgraph=True)(x)


PROGRAM_OF_ANOTHER_PROCESS = """
import torch, stagefold

@torch.library.custom_op("other_process::scale", mutates_args={{"out"}})
def scale(x: torch.Tensor, out: torch.Tensor, k: float) -> None:
    out.copy_(x * k{more})

def program(x):
    out = torch.empty_like(x)
    scale(x + 1, out, 2.0)
    scale(out * 2, out, 3.0)
    return out.sin()

call = stagefold.compile(program, fullgraph=True)
x = torch.linspace(0, 1, 5)
torch.testing.assert_close(call(x), program(x))
print(call._backend.reports[0].cached)
"""


def test_programs_that_write_by_operators_are_cached(tmp_path: Path) -> None:
    """Whoever reads one registers the functional forms again; the operator itself is that of the process."""

    def cached(more: str) -> str:
        environment = os.environ | {"STAGEFOLD_CACHE_DIR": str(tmp_path)}
        done = run_script(PROGRAM_OF_ANOTHER_PROCESS.format(more=more), environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert [cached(""), cached(""), cached(" + 1")] == ["False", "True", "True"]
