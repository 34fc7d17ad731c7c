"""Random numbers: drawn by ATen from its stream, in the order of the program, so that a seed gives eager's numbers.

Or by formula: `philox_state` takes from the stream what a kernel of ATen would, `philox_uniform` is the numbers of that
kernel as a function of it, which may be fused, and computed again.
"""

from __future__ import annotations

from primops.prims.layouts import FLOATS, INTEGERS, dense_stride, tensor
from primops.prims.record import Call, Constraint, Record, parameters
from stagewire.expr import Dim
from stagewire.types import TensorType

Shape = tuple[Dim, ...]
_X = tensor("float32", (2, 3))
_I = tensor("int64", (2, 3))


# --- rules ---------------------------------------------------------------------------------------------------------


def _like(x: TensorType, *_: object) -> tuple[TensorType, ...]:
    return (TensorType(x.dtype, x.shape, dense_stride(x.shape, x.stride), 0, x.device),)


def _made(shape: Shape, dtype: str) -> tuple[TensorType, ...]:
    return (tensor(dtype, shape),)


def _randint(low: Dim, high: Dim, shape: Shape, dtype: str) -> tuple[TensorType, ...]:
    return (tensor(dtype, shape),)


def _randperm(n: Dim, dtype: str) -> tuple[TensorType, ...]:
    return (tensor(dtype, (n,)),)


def _multinomial(weights: TensorType, count: Dim, replacement: bool) -> tuple[TensorType, ...]:
    return (tensor("int64", (*weights.shape[:-1], count), weights.device),)


def _with_noise(x: TensorType, noise: TensorType, *_: object) -> tuple[TensorType, ...]:
    return (*_like(x), *_like(noise))


def _state(count: Dim, device: str) -> tuple[TensorType, ...]:
    return tensor("int64", ()), tensor("int64", ())


def _uniform(
    seed: TensorType, offset: TensorType, shape: Shape, threads: int, width: int, device: str
) -> tuple[TensorType, ...]:
    return (tensor("float32", shape, device),)


# --- constraints ---------------------------------------------------------------------------------------------------


def _float_operand(x: TensorType, *_: object) -> str | None:
    return None if x.dtype in FLOATS else f"{x.dtype} is no float"


def _number_operand(x: TensorType, *_: object) -> str | None:
    return None if x.dtype in FLOATS | INTEGERS | {"bool"} else f"{x.dtype} is not supported"


def _float_dtype(shape: Shape, dtype: str) -> str | None:
    return None if dtype in FLOATS else f"{dtype} is no float"


def _probability(x: TensorType, p: float) -> str | None:
    return None if 0 <= p <= 1 else f"the probability is {p}"


def _range(low: Dim, high: Dim, shape: Shape, dtype: str) -> str | None:
    empty = type(low) is int and type(high) is int and low >= high
    return f"no integer from {low} on is below {high}" if empty else None


def _scale(x: TensorType, first: float, second: float) -> str | None:
    return None if second >= 0 else f"the scale is {second}"


def _order(x: TensorType, low: float, high: float) -> str | None:
    return None if low <= high else f"from {low} to {high}"


def _rows(weights: TensorType, count: Dim, replacement: bool) -> str | None:
    return None if len(weights.shape) in (1, 2) else f"weights of rank {len(weights.shape)}"


def _together(x: TensorType, y: TensorType, *_: object) -> str | None:
    return None if x.shape == y.shape and x.dtype == y.dtype else f"{list(x.shape)} and {list(y.shape)}"


def _slopes(x: TensorType, noise: TensorType, low: float, high: float, training: bool) -> str | None:
    return None if low <= high else f"from {low} to {high}"


def _a_state(seed: TensorType, offset: TensorType, *_: object) -> str | None:
    for x in (seed, offset):
        if (x.dtype, x.shape, x.device) != ("int64", (), "cpu"):
            return f"{x.dtype}{list(x.shape)} on {x.device}"
    return None


def _sharing(seed: TensorType, offset: TensorType, shape: Shape, threads: int, width: int, device: str) -> str | None:
    good = threads > 0 and threads % 256 == 0 and width in (1, 2, 4, 8, 16)
    return None if good else f"{threads} threads, {width} elements at a time"


def _calls(count: Dim, device: str) -> str | None:
    return None if isinstance(count, int) and count > 0 and count % 4 == 0 else f"the count is {count}"


D1 = Constraint("D1", "The operand is a float.", _float_operand, ("bernoulli", (_I,)), FLOATS)
D2 = Constraint("D2", "The dtype is a float.", _float_dtype, ("rand", ((2,), "int64")))
D3 = Constraint("D3", "The probability is between 0 and 1.", _probability, ("bernoulli_p", (_X, 1.5)))
D4 = Constraint("D4", "low is below high.", _range, ("randint", (3, 3, (2,), "int64")))
D5 = Constraint("D5", "The scale is not negative.", _scale, ("normal", (_X, 0.0, -1.0)))
D6 = Constraint("D6", "low is not above high.", _order, ("uniform", (_X, 1.0, 0.0)))
D7 = Constraint("D7", "The weights are one row or several.", _rows, ("multinomial", (tensor("float32", ()), 2, True)))
D8 = Constraint(
    "D8", "Both operands have one shape and one dtype.", _together, ("normal_of", (_X, tensor("float32", (3,))))
)  # fmt: skip
D9 = Constraint(
    "D9", "The operand is of a supported dtype.", _number_operand, ("bernoulli_p", (tensor("complex64", (2,)), 0.5))
)  # fmt: skip


D10 = Constraint("D10", "The least slope is not above the greatest.", _slopes, ("rrelu", (_X, _X, 0.5, 0.1, True)))
D11 = Constraint(
    "D11",
    "Seed and offset are numbers on the CPU.",
    _a_state,
    ("philox_uniform", (_I, tensor("int64", ()), (2,), 256, 1, "cpu")),
)
D12 = Constraint(
    "D12",
    "Threads come in blocks of 256; each takes 1, 2, 4, 8 or 16 elements at a time.",
    _sharing,
    ("philox_uniform", (tensor("int64", ()), tensor("int64", ()), (2,), 100, 1, "cpu")),
)
D13 = Constraint("D13", "The count is a multiple of four, and a number.", _calls, ("philox_state", (3, "cpu")))


def _draw(
    name: str, text: str, doc: str, rule: object, constraints: tuple[Constraint, ...], example: str, call: Call
) -> Record:
    return Record(name, "random", parameters(text), doc, rule, constraints, f"{name}({example}", call=call, draws=True)  # type: ignore[arg-type]


_MADE = ("dtype",)
RECORDS: tuple[Record, ...] = (
    _draw("rand", "shape: sizes, dtype: dtype", "Uniform in 0 <= x < 1.", _made, (D2,),
          "[2, 3], float32) -> f32[2, 3]", Call("aten.rand.default", _MADE)),
    _draw("randn", "shape: sizes, dtype: dtype", "Normal of mean 0 and deviation 1.", _made, (D2,),
          "[2, 3], float32) -> f32[2, 3]", Call("aten.randn.default", _MADE)),
    _draw("randint", "low: size, high: size, shape: sizes, dtype: dtype", "Integers in low <= x < high, all alike.",
          _randint, (D4,), "0, 10, [2, 3], int64) -> i64[2, 3]", Call("aten.randint.low", _MADE)),
    _draw("randperm", "n: size, dtype: dtype", "A permutation of 0..n-1.", _randperm, (), "5, int64) -> i64[5]",
          Call("aten.randperm.default", _MADE)),
    _draw("bernoulli", "x: tensor", "1 with the probability that x says, else 0.", _like, (D1,),
          "x: f32[2, 3]) -> f32[2, 3]", Call("aten.bernoulli.default")),
    _draw("bernoulli_p", "x: tensor, p: number", "1 with probability p, else 0, in the shape and dtype of x.", _like,
          (D9, D3), "x: f32[2, 3], 0.5) -> f32[2, 3]", Call("aten.bernoulli.p")),
    _draw("uniform", "x: tensor, low: number, high: number", "Uniform in low <= x < high, in the shape of x.", _like,
          (D1, D6), "x: f32[2, 3], 0.0, 1.0) -> f32[2, 3]", Call("aten.uniform.default")),
    _draw("normal", "x: tensor, mean: number, std: number", "Normal, in the shape of x.", _like, (D1, D5),
          "x: f32[2, 3], 0.0, 1.0) -> f32[2, 3]", Call("aten.normal_functional.default")),
    _draw("normal_of", "mean: tensor, std: tensor", "Normal of each mean and deviation.", _like, (D1, D8),
          "mean: f32[2, 3], std: f32[2, 3]) -> f32[2, 3]", Call("aten.normal.Tensor_Tensor")),
    _draw("exponential", "x: tensor, rate: number", "Exponential of this rate, in the shape of x.", _like, (D1,),
          "x: f32[2, 3], 1.0) -> f32[2, 3]", Call("aten.exponential.default")),
    _draw("cauchy", "x: tensor, median: number, sigma: number", "Cauchy, in the shape of x.", _like, (D1,),
          "x: f32[2, 3], 0.0, 1.0) -> f32[2, 3]", Call("aten.cauchy.default")),
    _draw("log_normal", "x: tensor, mean: number, std: number", "exp of a normal, in the shape of x.", _like,
          (D1, D5), "x: f32[2, 3], 1.0, 2.0) -> f32[2, 3]", Call("aten.log_normal.default")),
    _draw("geometric", "x: tensor, p: number", "Trials up to the first success, in the shape of x.", _like,
          (D9, D3), "x: f32[2, 3], 0.5) -> f32[2, 3]", Call("aten.geometric.default")),
    _draw("poisson", "rate: tensor", "Poisson of each rate.", _like, (D1,), "rate: f32[2, 3]) -> f32[2, 3]",
          Call("aten.poisson.default")),
    _draw("binomial", "count: tensor, prob: tensor", "Successes among count trials.", _like, (D1, D8),
          "count: f32[2, 3], prob: f32[2, 3]) -> f32[2, 3]", Call("aten.binomial.default")),
    _draw("standard_gamma", "shape: tensor", "Gamma of each shape and rate 1.", _like, (D1,),
          "shape: f32[2, 3]) -> f32[2, 3]", Call("aten._standard_gamma.default")),
    _draw("multinomial", "weights: tensor, count: size, replacement: bool",
          "Positions along the last dimension, drawn with the weights' probabilities.", _multinomial, (D1, D7),
          "weights: f32[2, 5], 3, false) -> i64[2, 3]", Call("aten.multinomial.default")),
    Record(
        "rrelu", "random", parameters("x: tensor, noise: tensor, low: number, high: number, training: bool"),
        "x where it is positive, elsewhere times a slope: drawn in low <= slope < high while training, else their "
        "middle; and the noise, which while training holds 1 or the slope.", _with_noise, (D1, D8, D10),
        "rrelu(x: f32[2, 3], noise: f32[2, 3], 0.1, 0.3, true) -> f32[2, 3], f32[2, 3]", ("out", "noise"),
        Call("aten.rrelu_with_noise_functional.default"), draws=True,
    ),
    Record(
        "philox_state", "random", parameters("count: size, device: word"),
        "The seed of a device's stream and its offset, which moves on by count: what a kernel of ATen takes that draws "
        "there. Numbers on the CPU, whose own stream has no offset: there it is 0, and the seed is drawn.",
        _state, (D13,), 'philox_state(4, "cuda:0") -> i64[], i64[]', ("seed", "offset"),
        Call("stagefold.philox_state.default"), draws=True,
    ),
    Record(
        "philox_uniform", "random",
        parameters("seed: tensor, offset: tensor, shape: sizes, threads: int, width: int, device: word"),
        "The numbers in 0 < x <= 1 that a kernel of ATen with so many threads draws on a GPU, each thread taking width "
        "elements that lie together (1: elements that lie `threads` apart, four a call). See `primops.philox`.",
        _uniform, (D11, D12), 'philox_uniform(seed: i64[], offset: i64[], [2, 3], 256, 4, "cuda:0") -> f32[2, 3]',
    ),
)  # fmt: skip
