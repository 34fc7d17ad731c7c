"""Sizes that change between calls: one capture serves them all, and gives what eager gives."""

from __future__ import annotations

import collections
import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import bytecap
from bytecap.guards import print_guard
from bytecap.guards.printing import symbol_names
from bytecap.testing.breaking import each, forced_breaks
from bytecap.testing.comparison import differences
from stagewire.capture import Capture, Relation
from stagewire.verify import verify


class Eager:
    """The eager backend, which takes symbols and keeps what it was given."""

    takes_symbols = True

    def __init__(self) -> None:
        self.captures: list[Capture] = []

    def __call__(self, capture: Capture, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        verify(capture)
        self.captures.append(capture)
        return bytecap.executor(capture)

    def relations(self) -> list[str]:
        """Those of the last capture, in the program's names."""
        last = self.captures[-1]
        names = symbol_names(last.symbols)
        return [print_guard(guard, names) for guard in last.guards if isinstance(guard, Relation)]


def run(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], **options: Any) -> Eager:
    """Call captured and plain with the same arguments."""
    backend = Eager()
    compiled = bytecap.optimize(function, backend, **options)
    for arguments in calls:
        assert not differences(function(*copy.deepcopy(arguments)), compiled(*copy.deepcopy(arguments)))
    return backend


def batches(*sizes: int) -> list[tuple[torch.Tensor]]:
    return [(torch.arange(size * 8.0).view(size, 8),) for size in sizes]


def views(x: torch.Tensor) -> Any:
    b, d = x.shape
    return x.view(b, 2, d // 2).transpose(0, 1).reshape(2, -1), x.unsqueeze(1).expand(-1, 3, -1).flatten(0, 1)


def arithmetic(x: torch.Tensor) -> Any:
    n = x.size(0)
    return x * n, n * 2 + 1, -n, n // 2, n % 3, n**2, max(n, 1), [n, (n - 1,)], {"n": x.shape}, x.numel()


def slices(x: torch.Tensor) -> Any:
    n = len(x)
    return x[: n - 1], x[1:], x[n // 2 :], x[..., -1], torch.cat([x[1:], x[:1]]), x.split(4, 1)[0]


def creations(x: torch.Tensor) -> Any:
    n = x.shape[0]
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    return torch.arange(n), torch.zeros(n, 2), x.new_full((n,), n), mask, torch.arange(n) + n, torch.full((2, n), 0.5)


def attends(x: torch.Tensor) -> Any:
    q = x.view(1, x.shape[0], 2, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(-1, 8), F.layer_norm(x @ x.t(), x.shape[:1])


def writes(x: torch.Tensor) -> Any:
    y = x.clone()
    y[: x.shape[0] - 1] += 1
    x.add_(1)
    return y, x.sum()


def kinds(x: torch.Tensor) -> Any:
    n = x.shape[0]
    is_large = bool(n) and n is not None and n != "n" and n >= 2
    return x + 1, isinstance(n, int), type(n) is int, isinstance(n, (float, str)), int(n), is_large, n == None  # noqa: E711


class Pair(NamedTuple):
    first: Any
    second: Any


def kinds_of_containers(x: torch.Tensor) -> Any:
    n = x.shape[0]
    known: list[Any] = [x.shape, (n, x), [n], {"n": n}, collections.OrderedDict(n=n), Pair(n, 1), slice(0, n)]
    kinds = (tuple, list, dict, torch.Size, slice, Pair, collections.abc.Mapping, collections.OrderedDict, dict | tuple)
    return x + 1, [[isinstance(one, kind) for kind in kinds] for one in known], isinstance(known, (dict, list))


def quotients(x: torch.Tensor) -> Any:
    n = x.shape[0]
    half, root = n / 2, math.sqrt(n)
    scaled = x * (1 / n) + x / root - n**-0.5 * x.mean(0) ** half
    return (
        scaled,
        half,
        [root * 1.5, -half],
        {"n": float(n)},
        isinstance(half, float),
        type(root),
        abs(half),
        half > 0.5,
    )


def rounded(x: torch.Tensor) -> Any:
    n = x.shape[0]
    return x[: int(n / 2)], x[: math.ceil(n / 8) * 2], n * 0.5 // 1 if n < 0 else math.floor(n * 1.5), int(n / 3 + 0.0)


@pytest.mark.parametrize(
    "program", [views, arithmetic, slices, creations, attends, writes, kinds, kinds_of_containers, quotients, rounded]
)
def test_one_capture_for_all_sizes(program: Callable[..., Any]) -> None:
    backend = run(program, batches(4, 5, 3, 17, 64, 4))
    assert len(backend.captures) == 2  # the first call, and all that differ from it
    assert run(program, batches(4, 5, 3, 17, 64, 4), dynamic=True).captures[1:] == []
    assert len(run(program, batches(4, 5, 3), dynamic=False).captures) == 3


def test_floats_that_need_their_number_fix_the_size() -> None:
    backend = run(lambda x: (x * round(x.shape[0] / 4), hash(x.shape[0] / 2)), batches(4, 6, 8), dynamic=True)
    assert len(backend.captures) == 3
    reciprocal = run(lambda x: x * (1 / (x.shape[0] - 5)), batches(4, 8, 3), dynamic=True)
    assert reciprocal.relations() == ["x.shape[0] != 5"]


def test_sizes_that_become_tensors_are_fixed() -> None:
    backend = run(lambda x: x.new_zeros(torch.div(x.shape[0], 2, rounding_mode="floor")), batches(4, 6, 8))
    assert len(backend.captures) == 3


def numbers_of_a_constant(x: torch.Tensor) -> Any:
    n, table = x.shape[0], torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    return x * 2, table[0, :n].tolist(), table[:, : n - 1].tolist(), table[1, n - 1].item()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_sizes_of_what_numbers_are_read_from_are_fixed(fullgraph: bool) -> None:
    backend = run(numbers_of_a_constant, batches(4, 3, 2), dynamic=True, fullgraph=fullgraph)
    assert len(backend.captures) == 3


def test_what_raises_at_one_size_raises_there() -> None:
    compiled = bytecap.optimize(lambda x: x * (1 / (x.shape[0] - 5)), Eager(), dynamic=True)
    compiled(torch.ones(4))
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(5))


@pytest.mark.parametrize("program", [views, arithmetic, slices, creations, quotients, rounded])
def test_breaks_anywhere_keep_the_sizes(program: Callable[..., Any]) -> None:
    for place in (3, 9, 17):
        with forced_breaks(each(place)):
            run(program, batches(4, 5, 3, 17))


def test_a_branch_is_a_relation_in_the_users_names() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] > 5 else x * 2

    backend = run(branches, batches(4, 3, 5, 2, 8, 6, 100, 4))
    assert len(backend.captures) == 3
    assert backend.relations() == ["x.shape[0] >= 6"]
    divides = run(lambda x: x + 1 if x.shape[0] % 4 == 0 else -x, batches(3, 4, 8, 16))
    assert divides.relations() == ["x.shape[0] % 4 == 0"]


def test_sizes_zero_and_one_are_captures_of_their_own() -> None:
    backend = run(lambda x: x + torch.ones(x.shape[0], 1), batches(4, 1, 5, 6, 0, 7, 1, 0))
    assert len(backend.captures) == 4


def test_sizes_that_are_equal_by_chance() -> None:
    def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[:, None] + y[None]

    pairs = [(torch.ones(a), torch.ones(b)) for a, b in ((3, 3), (4, 4), (5, 6), (7, 8), (9, 9))]
    assert len(run(outer, pairs).captures) == 3


def test_ints_that_change_are_symbols() -> None:
    backend = run(lambda x, n: (x.repeat(n, 1) * n, n + 1), [(torch.ones(2, 8), n) for n in (2, 3, 4, 9, 50)])
    assert len(backend.captures) == 2


def test_sizes_beside_numbers_that_are_open() -> None:
    """What the replacement computes again, texts too, fixes neither."""

    def program(x: torch.Tensor, n: int, k: int, rate: float) -> Any:
        return x[: n - k], n * rate, f"{n}/{k} at {rate:.1f}", x * (n * rate)

    calls = [(torch.ones(n, 8), n, 1, 0.5) for n in (4, 5, 3, 17)]
    assert len(run(program, calls).captures) == 2
    texts = run(lambda x, n, rate: (x + 1, f"{n}", n * rate), [(torch.ones(n, 8), n, 0.5) for n in (4, 5, 3, 17)])
    assert len(texts.captures) <= 2


def _messages(x: torch.Tensor, percent: str = "%s of %r, %d, %5.1f", fields: str = "{0} {1!r:>12} {0:}") -> Any:
    whole = f"{x.shape} {x.shape[0]!r} {tuple(x.shape)!s} {list(x.shape)!r} {((x.shape, None), [x.shape[1], 'a'])}"
    parts = str(x.shape), repr((x.shape[0],)), str(list(x.shape[1:])), str(())
    templates = percent % (x.shape, (x.shape[0],), x.shape[0], x.shape[0]), fields.format(x.shape, x.shape[0])
    return x + 1, whole, parts, templates


def _complaints(x: torch.Tensor, percent: str = "%s of %s", fields: str = "{} rows, of {}") -> torch.Tensor:
    def check(holds: bool, message: str) -> None:
        if not holds:
            raise ValueError(message)

    check(x.shape.numel() > 0, f"no elements in {x.shape}")
    check(x.dim() == 2, percent % (x.shape, (x.shape[0],)))
    check(x.shape[0] < 50, fields.format(x.shape[0], list(x.shape)))
    return x * 2


@pytest.mark.parametrize("program", [_messages, _complaints])
def test_texts_of_sizes_in_containers_stay_open(program: Callable[..., Any]) -> None:
    backend = run(program, batches(4, 5, 3, 17), dynamic=True)
    assert len(backend.captures) == 1


@pytest.mark.parametrize(
    ("percent", "fields"), [("%d", "{}"), ("%s %s", "{}"), ("%s", "{} {}"), ("%s", "{:d}"), ("%s", "{0.ndim}")]
)
def test_texts_that_cannot_be_made_raise_as_they_do(percent: str, fields: str) -> None:
    def program(x: torch.Tensor) -> Any:
        texts = []
        for make in (lambda: percent % (x.shape,), lambda: fields.format(x.shape)):
            try:
                texts.append(make())
            except (TypeError, IndexError, AttributeError) as error:
                texts.append(type(error))
        return x + 2, texts

    run(program, batches(4, 5), dynamic=True)


def test_texts_of_characters_fix_the_number() -> None:
    template = "%c"
    backend = run(lambda x: (x + 1, template % x.shape[0], f"{x.shape[0]:c}"), batches(40, 50), dynamic=True)
    assert len(backend.captures) == 2


def test_the_number_of_elements_stays_a_size() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.shape.numel(), x.reshape(x.shape[:1].numel() * 2, -1), torch.Size(()).numel()

    assert len(run(program, batches(4, 5, 3, 17), dynamic=True).captures) == 1


def test_an_int_that_the_program_fixes() -> None:
    layers = [torch.nn.Linear(8, 8 + width) for width in range(4)]
    backend = run(lambda x, n: layers[n](x), [(torch.ones(2, 8), n) for n in (0, 1, 2, 3)])
    assert len(backend.captures) == 4


def test_strided_inputs() -> None:
    calls = [(torch.arange(96.0).view(12, 8).t()[:, :n],) for n in (3, 5, 7)]
    backend = run(lambda x: x.contiguous().view(-1) + 1, calls)
    assert len(backend.captures) == 2


def test_gradients_flow_at_every_size() -> None:
    layer = torch.nn.Linear(8, 3)
    compiled = bytecap.optimize(lambda x: layer(x).tanh().mean(0).sum(), Eager())
    for (x,) in batches(4, 5, 9):
        layer.zero_grad()
        compiled(x).backward()
        found = layer.weight.grad.clone()
        layer.zero_grad()
        layer(x).tanh().mean(0).sum().backward()
        assert torch.equal(found, layer.weight.grad)


def test_marks() -> None:
    backend = Eager()
    compiled = bytecap.optimize(lambda x: x.sum(0) * x.shape[0], backend)
    for size in (4, 6, 9):
        x = torch.ones(size, 8)
        bytecap.mark_dynamic(x, 0, min=2, max=64)
        assert torch.equal(compiled(x), x.sum(0) * size)
    assert len(backend.captures) == 1
    assert backend.captures[0].symbols[0].upper == 64


def test_a_marked_size_that_a_line_fixes_is_an_error() -> None:
    x = torch.ones(4, 8)
    bytecap.mark_dynamic(x, 0)
    compiled = bytecap.optimize(lambda x: x + torch.ones(4, 8), Eager())
    with pytest.raises(bytecap.CannotCapture, match=r"BC017(.|\n)*x\.shape\[0\] was marked(.|\n)*test_dynamic_sizes"):
        compiled(x)


def test_a_marked_size_outside_of_its_range_is_an_error() -> None:
    compiled = bytecap.optimize(lambda x: x + 1, Eager())
    for size, fits in ((4, True), (64, True), (65, False), (3, False), (1, True)):
        x = torch.ones(size, 8)
        bytecap.mark_dynamic(x, 0, min=4, max=64)
        if fits:
            assert torch.equal(compiled(x), x + 1)
        else:
            with pytest.raises(bytecap.CannotCapture, match=rf"BC017: x.shape\[0\] is {size}(.|\n)*4..64"):
                compiled(x)


def test_what_leaves_a_marked_size_free_is_no_error() -> None:
    backend = Eager()
    compiled = bytecap.optimize(lambda x, y: (x.view(2, -1) + y.view(2, -1)) * min(x.shape[0], 50), backend)
    for size in (4, 6, 8, 64):
        x, y = torch.ones(size, 8), torch.ones(size, 8)
        for one in (x, y):
            bytecap.mark_dynamic(one, 0)
        assert torch.equal(compiled(x, y), torch.full((2, size * 4), 2.0 * min(size, 50)))
    assert len(backend.captures) == 2


def test_a_branch_on_one_size_names_the_marked_one() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[1] == 3 else x + 1

    x = torch.ones(4, 3)
    bytecap.mark_dynamic(x, 1)
    with pytest.raises(bytecap.CannotCapture, match=r"this line needs x\.shape\[1\] == 3"):
        bytecap.optimize(branches, Eager())(x)
    bytecap.maybe_mark_dynamic(x, 1)
    assert bytecap.optimize(branches, Eager())(x) is x


def test_numbers_of_modules_are_constants_and_those_of_others_symbols() -> None:
    """As torch.compile has it by default."""

    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.steps

    class Plain:
        steps = 2

    module, plain, counted = Counts(), Plain(), []
    for owner, call in ((module, module), (plain, lambda x: x * plain.steps)):
        backend = Eager()
        compiled = bytecap.optimize(call, backend)
        for owner.steps in (2, 3, 4, 5):
            assert torch.equal(compiled(torch.ones(3)), torch.full((3,), float(owner.steps)))
        counted.append(len(backend.captures))
    assert counted == [4, 2]


def test_static_marks() -> None:
    backend = Eager()
    compiled = bytecap.optimize(lambda x: x + 1, backend)
    for size in (4, 6, 9):
        x = torch.ones(size, 8)
        bytecap.mark_static(x)
        compiled(x)
    assert [capture.symbols for capture in backend.captures] == [(), (), ()]


def test_functions_that_take_no_symbols_are_captured_for_each_size() -> None:
    layer = torch.nn.LSTM(8, 8)
    backend = run(
        lambda x, y: (layer(x[:, None])[0], y + 1),
        [(torch.ones(n, 8), torch.ones(n + 3)) for n in (4, 5, 6)],
        fullgraph=True,
    )
    assert len(backend.captures) == 3
    assert [symbol.hint for symbol in backend.captures[-1].symbols] == [9]
    spaced = run(lambda x: x[torch.tril_indices(x.shape[0], 8)[0]], batches(4, 5, 6))
    assert len(spaced.captures) == 3


def test_images_of_open_sizes_are_resized() -> None:
    resized = run(lambda x: F.interpolate(x[None], size=x.shape[0] * 2), batches(4, 5, 6))
    assert len(resized.captures) == 2


def test_sizes_are_compared_with_those_of_all_earlier_captures() -> None:
    """A tensor that the last capture took no part in has another size than in the one before."""

    def program(x: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
        return x * 2 if state is None else x + state

    calls = [(torch.ones(n, 3), state) for n in (4, 5, 6) for state in (None, torch.ones(n, 3))]
    assert len(run(program, calls).captures) == 4  # both cases with fixed sizes, and with open ones


def test_custom_functions_take_other_sizes() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view(x.shape[0], -1) * x.shape[0]

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    calls = [(torch.ones(n, 8, requires_grad=True),) for n in (4, 5, 6)]
    backend = run(lambda x: Scaled.apply(x).sum(0).detach(), calls, dynamic=True)
    assert len(backend.captures) == 1
    for n in (7, 3):
        x = torch.ones(n, 8, requires_grad=True)
        compiled = bytecap.optimize(lambda x: Scaled.apply(x) * x.shape[0], backend, dynamic=True)
        compiled(x).sum().backward()
        assert torch.equal(x.grad, torch.full((n, 8), 2.0 * n))


def test_checks_and_checkpoints_take_other_sizes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        assert (x >= 0).all()
        return checkpoint(lambda y: y.sin() * y.shape[0], x, use_reentrant=False)

    backend = run(program, batches(4, 5, 6), dynamic=True)
    assert len(backend.captures) == 1
    (capture,) = backend.captures
    assert capture.checks
    assert capture.checkpoints
    assert capture.symbols
    with pytest.raises(AssertionError):
        bytecap.optimize(program, backend, dynamic=True)(torch.full((7, 8), -1.0))


def test_a_backend_that_wants_fixed_sizes() -> None:
    class Refuses(bytecap.CannotCapture):
        needs_fixed_sizes = True

    class Fixed(Eager):
        def __call__(self, capture: Capture, inputs: tuple[Any, ...]) -> Callable[..., Any]:
            if capture.symbols:
                raise Refuses("no symbols")
            return super().__call__(capture, inputs)

    backend = Fixed()
    compiled = bytecap.optimize(lambda x: x + x.shape[0], backend)
    for (x,) in batches(4, 5, 6):
        assert torch.equal(compiled(x), x + x.shape[0])
    assert len(backend.captures) == 3


def test_a_batch_may_be_as_large_as_statistics_that_are_written() -> None:
    """What the graph writes is compared with other inputs, which assumes nothing of sizes."""
    layer = torch.nn.BatchNorm1d(8)
    backend = run(layer.forward, batches(4, 5, 8), dynamic=True)
    assert len(backend.captures) == 1
    assert backend.relations() == ["8 == input.shape[1]"]


def test_a_written_input_of_another_size_may_be_the_same_tensor_later() -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sum() + y

    one = torch.arange(6.0)
    run(write, [(torch.ones(4), torch.ones(6)), (one, one)], dynamic=True)
