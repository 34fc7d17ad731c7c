"""mode="reduce-overhead": however a result is held, no replay overwrites it; and what cannot be allowed is refused.

All results here are handed out as they lie in the memory of recordings: the limit below which they are copied is 0.
Programs share sizes, so that their recordings share memory.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.dlpack import from_dlpack, to_dlpack

import stagefold
from codegen.runtime import cuda_graphs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("recordings")]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "COPIED", -1)
    monkeypatch.setattr(cuda_graphs, "LIMIT", 1000)


def compiled(function: Any, **more: Any) -> Any:
    return stagefold.compile(function, mode="reduce-overhead", fullgraph=True, **more)


# ---- ways to hold a tensor: each makes a function that reads what it holds


def by_storage(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    storage, offset, shape, stride = x.untyped_storage(), x.storage_offset(), x.shape, x.stride()
    return lambda: torch.empty(0, device=DEVICE).set_(storage, offset, shape, stride)


def by_view(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    view = x.detach().reshape(-1)[1:-1].unsqueeze(0)
    first, last, shape = x.reshape(-1)[0].item(), x.reshape(-1)[-1].item(), x.shape
    ends = torch.tensor([first, last], device=DEVICE)
    return lambda: torch.cat([ends[:1], view[0], ends[1:]]).reshape(shape)


def by_data(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    other = x.data
    return lambda: other


def by_capsule(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    held = [to_dlpack(x.detach())]

    def read() -> torch.Tensor:
        tensor = from_dlpack(held.pop())
        held.append(to_dlpack(tensor))
        return tensor

    return read


def by_foreign_storage(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    storage = from_dlpack(to_dlpack(x.detach())).untyped_storage()
    shape, stride = x.shape, x.stride()
    return lambda: torch.empty(0, device=DEVICE).set_(storage, 0, shape, stride)


def by_autograd(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Only as a value saved for a backward."""
    weight = torch.ones_like(x).requires_grad_()
    product = weight * x.detach()
    return lambda: torch.autograd.grad(product, weight, torch.ones_like(product), retain_graph=True)[0]


def by_autograd_node(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """As `by_autograd`; the node alone is held, as a hook or a profiler does."""
    node = (torch.ones_like(x).requires_grad_() * x.detach()).grad_fn
    return lambda: node._saved_other  # type: ignore[union-attr]


def by_packed(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Held by a hook that autograd gives values to be saved."""
    seen: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t), lambda _: seen[0]):  # type: ignore[func-returns-value, arg-type]
        (torch.ones_like(x).requires_grad_() * x.detach()).sum()
    return lambda: seen[0]


def by_traceback(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """As a local variable of a frame that an exception went through."""

    def fails(held: torch.Tensor) -> None:
        raise ValueError("a user's")

    try:
        fails(x)
    except ValueError as error:
        kept = error
    return lambda: kept.__traceback__.tb_next.tb_frame.f_locals["held"]  # type: ignore[union-attr]


def by_cycle(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """By garbage that has not been collected, which a weak reference still finds."""

    class Cycle:
        def __init__(self) -> None:
            self.tensor, self.me = x, self

    found = weakref.ref(Cycle())
    return lambda: None if found() is None else found().tensor  # type: ignore[return-value, union-attr]


def by_resurrection(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """By an object that does not go when the last reference to it goes."""
    risen: list[Any] = []

    class Phoenix:
        def __init__(self) -> None:
            self.tensor = x

        def __del__(self) -> None:
            risen.append(self)

    Phoenix()
    return lambda: risen[0].tensor


def by_array(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A numpy array (of CUDA memory: whatever reads its array interface)."""
    if DEVICE == "cuda":
        return by_data(x)
    array = x.detach().numpy()
    return lambda: torch.from_numpy(array)


HOLDERS = {name.removeprefix("by_"): hold for name, hold in list(globals().items()) if name.startswith("by_")}


@pytest.fixture
def garbage() -> Any:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_held_stays_what_it_was(holder: str, garbage: None) -> None:
    """Eight results, all of them held in this way, and then two more calls."""
    fast = compiled(lambda x: (torch.tanh(x) * 3).relu())
    inputs = [torch.randn(6, 7, device=DEVICE) for _ in range(10)]
    readers: list[Callable[[], torch.Tensor]] = []
    for x in inputs:
        with torch.no_grad():
            y = fast(x)
        if len(readers) < 8:
            readers.append(HOLDERS[holder](y))
        del y
        for read, given in zip(readers, inputs, strict=False):
            found = read()
            assert found is None or torch.allclose(found, (torch.tanh(given) * 3).relu(), atol=1e-5)
            del found


@pytest.mark.parametrize("holder", HOLDERS)
def test_gradients_that_are_held_stay_what_they_were(holder: str, garbage: None) -> None:
    weight = torch.randn(7, 7, device=DEVICE, requires_grad=True)
    program = lambda x: torch.tanh(x @ weight).square().sum()  # noqa: E731
    fast = compiled(program, dynamic=False)
    inputs = [torch.randn(rows, 7, device=DEVICE) for rows in (6, 4, 6, 4, 6, 4, 9, 6, 4)]
    readers: list[Callable[[], torch.Tensor]] = []
    for x in inputs:
        fast(x).backward()
        readers.append(HOLDERS[holder](weight.grad))
        weight.grad = None
        for read, given in zip(readers, inputs, strict=False):
            found = read()
            expected = torch.autograd.grad(program(given), weight)[0]
            assert found is None or torch.allclose(found, expected, atol=1e-4)
            del found


PROGRAMS: list[Callable[..., Any]] = [
    lambda x, w: (torch.sin(x) + 1, torch.cos(x) * 2),
    lambda x, w: ((x @ w).relu(), x.t().contiguous() + 1),
    lambda x, w: (torch.softmax(x @ w, -1), (x * w).cumsum(0)),
    lambda x, w: (x.flip(0).exp(), torch.sort(x, -1).values),
]


@pytest.mark.parametrize("seed", range(6))
def test_programs_in_any_order_and_results_held_in_any_way(seed: int) -> None:
    """Forwards, backwards of any of them (some twice), results that come back as inputs, gradients that add up."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    weight = torch.randn(8, 8, device=DEVICE, requires_grad=True)
    other = weight.detach().clone().requires_grad_()
    fast = [compiled(one) for one in PROGRAMS]
    held: list[tuple[Callable[[], torch.Tensor], torch.Tensor]] = []
    pending: list[tuple[torch.Tensor, torch.Tensor]] = []
    results: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(90):
        match draw.choice(("call", "call", "call", "backward", "let go", "gradients")):
            case "call":
                number = draw.randrange(len(PROGRAMS))
                x, y = (
                    draw.choice(results) if results and draw.random() < 0.4 else [torch.randn(8, 8, device=DEVICE)] * 2
                )
                found, expected = fast[number](x, weight), PROGRAMS[number](y, other)
                which = draw.randrange(2)
                if found[which].requires_grad and draw.random() < 0.6:
                    pending.append((found[which].square().sum(), expected[which].square().sum()))
                else:
                    holder = HOLDERS[draw.choice(list(HOLDERS))]
                    held.append((holder(found[which].detach()), expected[which].detach()))
                results = [
                    *results[-1:],
                    (found[1 - which].detach().clamp(-4, 4), expected[1 - which].detach().clamp(-4, 4)),
                ]
                del found, x
            case "backward" if pending:
                one = pending[draw.randrange(len(pending))]
                again = draw.random() < 0.3
                for loss in one:
                    loss.backward(retain_graph=again)
                if not again:
                    pending = [kept for kept in pending if kept is not one]
                del one
            case "let go" if held:
                del held[draw.randrange(len(held))]
            case "gradients" if weight.grad is not None:
                held.append((HOLDERS[draw.choice(list(HOLDERS))](weight.grad), other.grad.clone()))  # type: ignore[union-attr]
                weight.grad = other.grad = None
        for read, expected in held[-12:]:
            value = read()
            if value is not None:
                torch.testing.assert_close(value.reshape(expected.shape), expected, rtol=2e-3, atol=2e-3)
            del value
        if weight.grad is not None:
            torch.testing.assert_close(weight.grad, other.grad, rtol=2e-3, atol=2e-3)


def test_results_that_are_held_for_good_are_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two results are kept; later calls at this size and at another one are replayed all the same, after a while."""
    replays = []
    handed = cuda_graphs.Replayed._handed

    def counted(unit: cuda_graphs.Replayed, *rest: Any) -> Any:
        replays.append(1)
        return handed(unit, *rest)

    monkeypatch.setattr(cuda_graphs.Replayed, "_handed", counted)
    fast = compiled(lambda x: (torch.tanh(x) * 3).relu(), dynamic=True)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for rows in (6, 5):
        for _ in range(6):
            x = torch.randn(rows, 7, device=DEVICE)
            kept.append((fast(x), (torch.tanh(x) * 3).relu()))
        del kept[-4:]
    for step in range(80):
        x = torch.randn((6, 5)[step % 2], 7, device=DEVICE)
        y = fast(x)
        torch.testing.assert_close(y, (torch.tanh(x) * 3).relu())
        for found, expected in kept:
            torch.testing.assert_close(found, expected)
    replays.clear()
    for step in range(10):
        y = fast(torch.randn((6, 5)[step % 2], 7, device=DEVICE))
    assert len(replays) == 10
    assert y.shape == (5, 7)


def test_memory_of_results_is_not_resized() -> None:
    """A recording writes where it was made to: another size of that memory would be another place."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Conv1d(8, 8, 1)).to(DEVICE)
    for program in (model, lambda x: (x * 2).cos()):
        fast = compiled(program)
        with torch.no_grad():
            for round_ in range(5):
                x = torch.randn(8, 8, device=DEVICE)
                y = fast(x)
                if round_ > 2:
                    with pytest.raises(RuntimeError, match="not resizable"):
                        y.untyped_storage().resize_(0)
                    with pytest.raises(RuntimeError, match="not resizable"):
                        y[:].resize_(100, 100)
                torch.testing.assert_close(y, program(x), rtol=1e-2, atol=1e-2)


def test_after_a_backward_that_raised() -> None:
    """The exception is held, and with it what its frames hold."""
    weight = torch.randn(8, 8, device=DEVICE, requires_grad=True)
    program = lambda x: torch.tanh(x @ weight)  # noqa: E731
    fast = compiled(program)
    errors, held = [], []
    for round_ in range(9):
        x = torch.randn(8, 8, device=DEVICE)
        y = fast(x)
        held.append((y, program(x)))
        if round_ % 2:

            def fails(gradient: torch.Tensor) -> None:
                raise ValueError("a user's")

            y.register_hook(fails)
            try:
                y.sum().backward()
            except ValueError as error:
                errors.append(error)
        else:
            weight.grad = None
            y.sum().backward(retain_graph=True)
            expected = torch.autograd.grad(program(x).sum(), weight)[0]
            torch.testing.assert_close(weight.grad, expected, rtol=1e-4, atol=1e-4)
        for found, right in held:
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
        del held[:-3]
    assert len(errors) == 4


def test_a_finalizer_that_calls_the_program() -> None:
    """It runs where the last reference to a result goes, maybe in the middle of another call."""
    fast = compiled(lambda x: torch.sin(x) * 2)
    made: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Calls:
        def __del__(self) -> None:
            x = torch.randn(16, device=DEVICE)
            made.append((fast(x), torch.sin(x) * 2))

    for _ in range(8):
        x = torch.randn(16, device=DEVICE)
        y = fast(x)
        y.owner = Calls()  # type: ignore[attr-defined]
        y.me = y  # type: ignore[attr-defined]
        torch.testing.assert_close(y, torch.sin(x) * 2)
        del y
        gc.collect()
        for found, expected in made:
            torch.testing.assert_close(found, expected)
    assert len(made) == 8


def test_threads_that_hold_results() -> None:
    fast = compiled(lambda x: (torch.sin(x) * 2, torch.cos(x)))
    fast(torch.randn(64, device=DEVICE))

    def work(number: int) -> int:
        draw, held, wrong = random.Random(number), [], 0
        generator = torch.Generator(DEVICE).manual_seed(number)
        for _ in range(150):
            x = torch.randn(64, device=DEVICE, generator=generator)
            y, z = fast(x)
            held.append((by_storage(y) if draw.random() < 0.5 else by_data(y), torch.sin(x) * 2))
            del y, z
            wrong += sum(not torch.allclose(read(), expected, atol=1e-5) for read, expected in held)
            if len(held) > 2:
                del held[draw.randrange(3)]
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert not sum(pool.map(work, range(4)))


def test_results_outlive_the_program() -> None:
    model = nn.Linear(32, 32).to(DEVICE)
    held = []
    for _ in range(3):
        fast = compiled(model)
        for _ in range(4):
            x = torch.randn(16, 32, device=DEVICE)
            held.append((fast(x).detach(), model(x)))
        del fast
        stagefold.reset()
        gc.collect()
        for found, expected in held:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
