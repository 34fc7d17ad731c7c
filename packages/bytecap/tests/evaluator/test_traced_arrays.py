"""NumPy on arrays that the graph computes: one graph, with the types, numbers, views and writes of NumPy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bytecap import executor, optimize
from bytecap.errors import CannotCapture
from stagewire.verify import verify

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.skipif(np.__version__.startswith("1."), reason="NumPy 1 chooses types by the numbers")

FLOATS = [[4.1, -1.5, 2.5, 0.3], [-1.0, 5.5, -2.5, 3.7], [0.2, 1e-3, 7, -0.3], [0.4, 2.5, 2.6, 10]]
ODD = [[np.nan, -1.5, 2.5, np.inf], [-0.0, 0.5, -2.5, 3.7], [-np.inf, 1e-3, 7, -0.3], [0.0, 2.5, 2.5, 1e10]]
WHOLE = [[100, 3, 1, 0], [1, 2, 127, 7], [9, 9, 0, 4], [2, 5, 6, 7]]
DATA = {
    "float32": torch.tensor(FLOATS),
    "odd": torch.tensor(ODD),
    "float64": torch.tensor(ODD, dtype=torch.float64),
    "float16": torch.tensor(FLOATS, dtype=torch.float16),
    "int64": torch.tensor(WHOLE) - 3,
    "int32": torch.tensor(WHOLE, dtype=torch.int32),
    "uint8": torch.tensor(WHOLE, dtype=torch.uint8),
    "int8": torch.tensor(WHOLE, dtype=torch.int8),
    "bool": torch.tensor(WHOLE) > 5,
    "transposed": torch.tensor(FLOATS).T,
    "a part": torch.tensor(FLOATS * 2)[1::2, :4],
    "expanded": torch.tensor(FLOATS)[:1].expand(4, 4),
    "of one size": torch.tensor(FLOATS)[:1, :1],
}

CALLS: dict[str, Callable[[Any], Any]] = {
    "where": lambda a: np.where(a > 1, a, 0),
    "where of two": lambda a: np.where(a > 1, np.sin(a), a.T),
    "mean": lambda a: a.mean(axis=0),
    "a number": lambda a: (a.mean(), a.max(), a.sum(), a.std(), a.argmax(), a[0, 0]),
    "keepdims": lambda a: np.sum(a, axis=-1, keepdims=True),
    "of a type": lambda a: (a.sum(dtype=np.float64), a.astype(np.int32), a.astype("float64"), a.astype(bool)),
    "division": lambda a: (a / 3, 1 / (a + 0.5), a // 3, a % 3, np.divmod(a, 3)),
    "powers": lambda a: (a**2, a**3, 2.0**a, np.float_power(a, 3), a**1.5),
    "numbers of several types": lambda a: (a + 2, a * 2.5, a + np.float32(3), np.int64(3) * a, a * np.float64(0.5)),
    "known arrays": lambda a: (a + np.arange(4), np.stack([a, np.ones_like(a)]), a * [1, 2, 3, 4]),
    "exponentials": lambda a: (np.exp(-abs(a / 9)), np.log1p(abs(a)), np.logaddexp(a, 2), np.hypot(a, 3)),
    "trigonometry": lambda a: (np.sin(a), np.arctan2(a, 2), np.tanh(a), np.deg2rad(a)),
    "comparisons": lambda a: (a > a.T, a == 2, a != a, np.isnan(a), np.isclose(a, a + 1e-9), ~(a > 1)),
    "extremes": lambda a: (np.maximum(a, 1), np.fmax(a, a.T), np.clip(a, 0, 2), a.clip(1), np.clip(a, -1, 2.5)),
    "orders": lambda a: (np.sort(a, axis=0), np.cumsum(a, axis=1, dtype=np.float64), np.diff(a), np.ptp(a)),
    "products": lambda a: (a @ a.T, np.dot(a, a.T), np.outer(a[0], a[0]), np.einsum("ij,kj->ik", a, a)),
    "shapes": lambda a: (a.reshape(-1), a.T, a[None], np.expand_dims(a, 0), a.swapaxes(0, 1), a.ravel(), a.flatten()),
    "parts": lambda a: (a[0], a[..., 0], a[:, ::2], a[[0, 0]], a[:1, :1], np.take(a, [0], axis=1)),
    "joins": lambda a: (np.concatenate([a, a * 2]), np.vstack([a, a]), np.tile(a, (2, 1)), np.repeat(a, 2, axis=0)),
    "moved": lambda a: (np.roll(a, 1), np.pad(a, 1), np.tril(a), np.split(a, [1])),
    "backwards": lambda a: (np.flip(a) * 1, a[::-1] + 0, np.diag(a) * 1, np.broadcast_to(a[0], (2, *a.shape)).copy()),
    "questions": lambda a: (a.shape, a.dtype, a.ndim, a.size, len(a), np.shape(a), isinstance(a, np.ndarray)),
    "rows": lambda a: ([row.sum() for row in a], [float(n) for n in range(len(a))]),
    "nothing": lambda a: (a[:0], a[:0].sum(), np.zeros((0, 4)) + a[:1]),
}
NOT_OF = {  # what eager refuses or warns of, what torch gives another type, and what overflows
    "bool": {"division", "powers", "numbers of several types", "orders", "extremes", "products"},
    "uint8": {"a number", "keepdims", "orders", "rows", "nothing"},
    "expanded": {"orders"},
    "of one size": {"known arrays", "nothing"},
    "odd": {"products"},
    "float64": {"products"},
}


def backend(capture: Any, inputs: Any) -> Any:
    verify(capture)
    return executor(capture)


def check_same(found: Any, expected: Any) -> None:
    """Types, sizes and strides are equal, numbers up to rounding."""
    assert type(found) is type(expected)
    ours, theirs = tree_leaves(found), tree_leaves(expected)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert type(one) is type(other)
        if not isinstance(other, np.ndarray | np.generic):
            if isinstance(other, Tensor):
                torch.testing.assert_close(one, other, equal_nan=True)
            else:
                assert one == other
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.strides == other.strides or other.size < 2 or 1 in other.shape
        tolerance = 2e-3 if other.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def run(program: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NaNs
        return program(*args)


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, kind: str) -> None:
    if name in NOT_OF.get(kind, ()):
        pytest.skip("NumPy refuses or warns of it, or torch has no such type")

    def program(x: Tensor) -> Any:
        return CALLS[name](x.numpy())

    compiled = optimize(program, backend, fullgraph=True)
    for x in (DATA[kind], DATA[kind].flip(0)):
        check_same(run(compiled, x), run(program, x))


LINEAR: dict[str, Callable[[Any], Any]] = {
    "norms": lambda a: (np.linalg.norm(a), np.linalg.norm(a, axis=1), np.linalg.norm(a, "fro"), np.linalg.norm(a, 1)),
    "inverses": lambda a: (np.linalg.inv(a), np.linalg.solve(a, a[0]), np.linalg.det(a), np.linalg.pinv(a)),
    "ranks": lambda a: (np.linalg.matrix_rank(a), np.linalg.cond(a), np.linalg.eigvalsh(a @ a.T)),
    "powers of matrices": lambda a: (np.linalg.matrix_power(a, 3), np.linalg.multi_dot([a, a, a])),
    "spectra": lambda a: (np.fft.fft(a), np.fft.ifft(a), np.fft.rfft(a, axis=0), np.fft.fft2(a, norm="ortho")),
    "parts of spectra": lambda a: (np.abs(np.fft.rfft(a)), np.fft.fft(a).imag.copy(), np.conj(np.fft.ifft(a)) * 2),
    "back": lambda a: (np.fft.irfft(np.fft.rfft(a)), np.fft.fftshift(a)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_algebra(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(FLOATS, dtype=dtype)
    check_same(optimize(lambda x: LINEAR[name](x.numpy()), backend, fullgraph=True)(x), LINEAR[name](x.numpy()))


def writes(x: Tensor) -> Any:
    array = x.numpy()
    row = array[1]
    array[0] = 7
    array[1:] = array[:-1]  # of one memory
    row += array[2] * 2
    array[:, 1] /= 2
    made = np.exp(-array)
    made.fill(3)
    made.sort(axis=0)
    return array, row, x + 1, made


def of_one_memory(x: Tensor) -> Any:
    array = x.numpy()
    part = array.reshape(-1)[2:]
    again = torch.from_numpy(part)
    again.mul_(2)
    return array, part, again, array.T, np.asarray(x) + 1, torch.tensor(array), torch.as_tensor(array.sum())


@pytest.mark.parametrize("program", [writes, of_one_memory], ids=lambda program: program.__name__)
def test_writes_and_views(program: Callable[[Tensor], Any]) -> None:
    compiled = optimize(program, backend, fullgraph=True)
    for factor in (1, 3):
        x, twin = torch.tensor(FLOATS) * factor, torch.tensor(FLOATS) * factor
        found, expected = compiled(x), program(twin)
        check_same(found, expected)
        assert torch.equal(x, twin)
        arrays = [[one for one in result if isinstance(one, np.ndarray)] for result in (found, expected)]
        shared = [[np.shares_memory(one, other) for one in each for other in each] for each in arrays]
        assert shared[0] == shared[1]
        found[0][0, 0] = expected[0][0, 0] = 99
        assert torch.equal(x, twin)


NUMBERS: dict[str, Callable[[Tensor, Any], Any]] = {
    "as Python numbers": lambda x, a: (x * float(a.sum()), float(a[0, 0]), x + int(a.max()), a.sum().item() + 1),
    "beside tensors": lambda x, a: (x * a.sum(), a.max() - x, x > a.mean(), a.min() == x, x ** a[0, 1], x == a[0, 0]),
    "given to torch": lambda x, a: (torch.full((2,), a.max()), torch.add(x, a.sum(), alpha=2), x.clamp(max=a[0, 0])),
    "in place": lambda x, a: x.clone().mul_(a.sum()),
    "by index": lambda x, a: x.long() + a.argmax() + int(a.argmax()),
}


@pytest.mark.parametrize("kind", ["float32", "odd", "float16", "int64", "bool"])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str, kind: str) -> None:
    def program(x: Tensor) -> Any:
        return NUMBERS[name](x, x.numpy())

    def outcome(function: Callable[..., Any], x: Tensor) -> Any:
        try:
            return run(function, x)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            return type(error), str(error)

    of_graph = optimize(program, WholeOnData(), fullgraph=True)
    for compiled in (of_graph, optimize(program, WholeOnData()), optimize(program, backend)):
        for x in (DATA[kind], DATA[kind].flip(0)):
            expected = outcome(program, x)
            if kind != "bool" and not isinstance(expected[0], type):
                check_same(run(compiled, x), expected)
            elif compiled is not of_graph:
                check_same(outcome(compiled, x), expected)


class WholeOnData:
    takes_symbols = takes_data_sizes = True

    def __call__(self, capture: Any, inputs: Any) -> Any:
        return executor(capture)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "signs that differ": lambda a: np.linalg.svd(a),
    "wrong for some numbers": lambda a: np.cbrt(a),
    "an order of equal numbers": lambda a: a.argsort(axis=0),
    "negative powers": lambda a: 2 ** (a * 2).astype(np.int64),
    "a view that torch cannot have": lambda a: a[::-1],
    "a view that is read-only": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "a write into what was read backwards": lambda a: np.flip(a) + a.fill(3) if a.fill(2) else a[::-1].fill(3),
    "another size in place": lambda a: a.copy().resize((2, 2)),
    "no translation": lambda a: np.interp(a[0], [0, 1], [2, 3]),
    "of an argument": lambda a: np.exp(a, out=a),
    "several numbers for one place": lambda a: (a.__setitem__([0, 0], a[:2]), a),
    "a list for one place": lambda a: (a.__setitem__(([0, 0], [1, 1]), [5, 6]), a),
    "a branch": lambda a: a * 2 if a.sum() > 0 else a,
    "a file": lambda a: a.tofile("/dev/null"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_ends_the_graph(name: str) -> None:
    def program(x: Tensor) -> Any:
        return REFUSED[name](x.numpy())

    with pytest.raises(CannotCapture):
        optimize(program, backend, fullgraph=True)(torch.tensor(FLOATS))
    x, twin = torch.tensor(FLOATS).abs(), torch.tensor(FLOATS).abs()
    check_same(optimize(program, backend)(x), program(twin))
    assert torch.equal(x, twin)


@pytest.mark.parametrize(
    "x",
    [torch.ones(3, requires_grad=True), torch.ones(3, dtype=torch.bfloat16), torch.ones(3, device="meta")],
    ids=["requires grad", "bfloat16", "no memory"],
)
def test_tensors_that_are_no_arrays(x: Tensor) -> None:
    def program(x: Tensor) -> Any:
        return np.exp((x * 2).numpy())

    with pytest.raises((RuntimeError, TypeError)) as expected:
        program(x)
    with pytest.raises(expected.type):
        optimize(program, backend)(x)


@torch.no_grad()
def without_gradients(x: Tensor) -> Any:
    leaf, made = x.numpy(), (x * 2).numpy()
    leaf[0] = 5
    return leaf, np.exp(made), torch.from_numpy(leaf) + 1, x * 1


def test_arrays_outside_of_grad_mode_of_what_has_a_gradient() -> None:
    x, twin = (torch.ones(3, requires_grad=True) for _ in range(2))
    found, expected = optimize(without_gradients, backend, fullgraph=True)(x), without_gradients(twin)
    check_same(found, expected)
    assert [x.requires_grad for x in found[2:]] == [x.requires_grad for x in expected[2:]] == [False, False]
    assert torch.equal(x, twin)
    found[0][1] = 7
    assert x[1] == 7, "the array is over the memory of the tensor"


def test_an_error_of_the_data_is_numpys_own() -> None:
    compiled = optimize(lambda x: np.linalg.inv(x.numpy()), backend, fullgraph=True)
    check_same(compiled(torch.eye(3) * 2), np.eye(3, dtype=np.float32) / 2)
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        compiled(torch.ones(3, 3))


def test_numpys_errors_are_raised_where_the_program_asks_for_them() -> None:
    compiled = optimize(lambda x: np.log(x.numpy()), backend)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        compiled(torch.tensor([-1.0]))


def test_sizes_that_change() -> None:
    def program(x: Tensor) -> Any:
        array = x.numpy()
        rows = array.shape[0]
        return (
            array.reshape(-1),
            array[: rows // 2].reshape(rows // 2 * 4) * 2,
            np.concatenate([array, array]).mean(0),
            array.size,
        )

    class Symbolic:
        takes_symbols = True

        def __call__(self, capture: Any, inputs: Any) -> Any:
            captures.append(capture)
            return executor(capture)

    captures: list[Any] = []
    compiled = optimize(program, Symbolic(), fullgraph=True)
    for size in (3, 6, 9, 12):
        x = torch.linspace(0, 1, size * 4).view(size, 4)
        check_same(compiled(x), program(x))
    assert len(captures) == 2
