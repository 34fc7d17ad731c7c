"""The prim `squareplus.squareplus`: its record, its loops, and its text in C++ and Triton. No torch.

squareplus(x, b) = (x + sqrt(x*x + b)) / 2: a smooth max(x, 0) without an exponential (Barron 2021, arXiv:2112.11687).
"""

from stagewire.types import contiguous
from stagewire.vocabulary import Op, Vocabulary, constraint, of_dtypes, parameters

FLOATS = frozenset(("float32", "float64", "float16", "bfloat16"))
WRONG = contiguous("int64", (2,))


@constraint("b is positive.", ("squareplus", (contiguous("float32", (2,)), -1.0)))
def Q2(x, b):
    return None if b > 0 else f"b is {b}"


OP = Op(
    "squareplus",
    "activations",
    parameters("x: tensor, b: number"),
    "(x + sqrt(x*x + b)) / 2, for each element.",
    lambda x, b: (contiguous(x.dtype, x.shape, device=x.device),),
    (of_dtypes("Q1", FLOATS, "x is of floats.", ("squareplus", (WRONG, 4.0))), Q2),
    "squareplus(x: f32[2, 3], 4.0) -> f32[2, 3]",
)
VOCABULARY = Vocabulary("squareplus", 1, {"squareplus": OP}, {"activations": "Smooth forms of max(x, 0)."})


def lower(lowering, call):
    """One point of the result for each of the operand."""
    x, _ = call.tensor("x")
    b = call.operand("b")
    lowering.pointwise(call, lambda ops, *i: ops.compute("squareplus.squareplus", ops.load(x, *i), b))


def numpy(x, b):
    return (x + (x * x + b) ** 0.5) * 0.5


NUMPY = {"squareplus.squareplus": numpy}
LOWERINGS = {"squareplus.squareplus": (("x", "b"), lower)}


def cpp(dtype, x, b):
    root = "__builtin_sqrt" if dtype == "float64" else "__builtin_sqrtf"
    half = "0.5" if dtype == "float64" else "0.5f"
    return f"(({x} + {root}({x} * {x} + {b})) * {half})"


CPP = {"squareplus.squareplus": cpp}
TRITON = {"squareplus.squareplus": lambda dtype, x, b: f"({x} + square_root({x} * {x} + {b})) * 0.5"}
