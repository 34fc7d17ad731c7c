"""Special functions: elementwise like the elementwise prims, computed by ATen's own kernels."""

from __future__ import annotations

from primops.prims.elementwise import E1, E3, E4
from primops.prims.layouts import FLOATS, INTEGERS, dense_stride, tensor
from primops.prims.record import Call, Constraint, Record, parameters
from stagewire.types import TensorType

_I = tensor("int64", (2, 3))


def _like(x: TensorType, *_: object) -> tuple[TensorType, ...]:
    return (TensorType(x.dtype, x.shape, dense_stride(x.shape, x.stride), 0, x.device),)


def _polygamma(n: int, x: TensorType) -> tuple[TensorType, ...]:
    return _like(x)


def _floats(*operands: object) -> str | None:
    bad = [x.dtype for x in operands if isinstance(x, TensorType) and x.dtype not in FLOATS]
    return f"{bad[0]} is no float" if bad else None


def _order(n: int, x: TensorType) -> str | None:
    return None if n >= 0 else f"the order is {n}"


def _integers(*operands: object) -> str | None:
    bad = [x.dtype for x in operands if isinstance(x, TensorType) and x.dtype not in INTEGERS]
    return f"{bad[0]} is no integer" if bad else None


def _parts(x: TensorType) -> tuple[TensorType, ...]:
    return (*_like(x), TensorType("int32", x.shape, dense_stride(x.shape, x.stride), 0, x.device))


T1 = Constraint("T1", "Operands are of a floating dtype.", _floats, ("i0", (_I,)), FLOATS)
T2 = Constraint("T2", "The order is not negative.", _order, ("polygamma", (-1, tensor("float32", (2,)))))

T3 = Constraint(
    "T3", "Operands are of an integer dtype.", _integers, ("gcd", (tensor("float32", (2, 3)),) * 2), INTEGERS
)

_ONE = {
    "i0": "Modified Bessel function of the first kind, order 0.",
    "i0e": "exp(-|x|) * i0(x).",
    "i1": "Modified Bessel function of the first kind, order 1.",
    "i1e": "exp(-|x|) * i1(x).",
    "bessel_j0": "Bessel function of the first kind, order 0.",
    "bessel_j1": "Bessel function of the first kind, order 1.",
    "bessel_y0": "Bessel function of the second kind, order 0.",
    "bessel_y1": "Bessel function of the second kind, order 1.",
    "modified_bessel_i0": "Modified Bessel function of the first kind, order 0 (Cephes' own series).",
    "modified_bessel_i1": "Modified Bessel function of the first kind, order 1 (Cephes' own series).",
    "modified_bessel_k0": "Modified Bessel function of the second kind, order 0.",
    "modified_bessel_k1": "Modified Bessel function of the second kind, order 1.",
    "scaled_modified_bessel_k0": "exp(x) * modified_bessel_k0(x).",
    "scaled_modified_bessel_k1": "exp(x) * modified_bessel_k1(x).",
    "spherical_bessel_j0": "sin(x) / x, and 1 at 0.",
    "airy_ai": "Airy function Ai.",
    "erfcx": "exp(x * x) * erfc(x) without overflow.",
    "ndtri": "The argument at which the normal distribution function is x.",
    "log_ndtr": "Logarithm of the normal distribution function.",
}
_TWO = {
    "zeta": "Hurwitz zeta function: the sum of (k + y) ** -x over k >= 0.",
    "igamma": "Regularised lower incomplete gamma function of shape x at y.",
    "igammac": "Regularised upper incomplete gamma function of shape x at y.",
    "chebyshev_polynomial_t": "Chebyshev polynomial of the first kind and degree y at x.",
    "chebyshev_polynomial_u": "Chebyshev polynomial of the second kind and degree y at x.",
    "chebyshev_polynomial_v": "Chebyshev polynomial of the third kind and degree y at x.",
    "chebyshev_polynomial_w": "Chebyshev polynomial of the fourth kind and degree y at x.",
    "shifted_chebyshev_polynomial_t": "chebyshev_polynomial_t at 2 * x - 1.",
    "shifted_chebyshev_polynomial_u": "chebyshev_polynomial_u at 2 * x - 1.",
    "shifted_chebyshev_polynomial_v": "chebyshev_polynomial_v at 2 * x - 1.",
    "shifted_chebyshev_polynomial_w": "chebyshev_polynomial_w at 2 * x - 1.",
    "hermite_polynomial_h": "Physicist's Hermite polynomial of degree y at x.",
    "hermite_polynomial_he": "Probabilist's Hermite polynomial of degree y at x.",
    "laguerre_polynomial_l": "Laguerre polynomial of degree y at x.",
    "legendre_polynomial_p": "Legendre polynomial of degree y at x.",
}
_PLAIN = ("i0", "igamma", "igammac")
"""Names that ATen has without "special_" in front."""


def target_of(name: str) -> str:
    """The ATen overload of a special function."""
    return f"aten.{name if name in _PLAIN else 'special_' + name}.default"


_WHOLE = {"gcd": "Greatest common divisor, not negative.", "lcm": "Least common multiple, not negative."}
UNARY = tuple(_ONE)
BINARY = tuple(_TWO)
_FAMILY = "special"
RECORDS: tuple[Record, ...] = (
    *(
        Record(name, _FAMILY, parameters("x: tensor"), doc, _like, (T1,), f"{name}(x: f32[2, 3]) -> f32[2, 3]",
               call=Call(target_of(name)))
        for name, doc in _ONE.items()
    ),
    *(
        Record(name, _FAMILY, parameters("x: tensor, y: tensor"), doc, _like, (E1, E3, E4, T1),
               f"{name}(x: f32[2, 3], y: f32[2, 3]) -> f32[2, 3]", call=Call(target_of(name)))
        for name, doc in _TWO.items()
    ),
    *(
        Record(name, _FAMILY, parameters("x: tensor, y: tensor"), doc, _like, (E1, E3, E4, T3),
               f"{name}(x: i64[2, 3], y: i64[2, 3]) -> i64[2, 3]", call=Call(f"aten.{name}.default"))
        for name, doc in _WHOLE.items()
    ),
    Record(
        "frexp", _FAMILY, parameters("x: tensor"),
        "x as mantissa * 2 ** exponent, the mantissa in 0.5 <= |m| < 1 or 0.",
        _parts, (T1,), "frexp(x: f32[2, 3]) -> f32[2, 3], i32[2, 3]", ("mantissa", "exponent"),
        Call("aten.frexp.Tensor"),
    ),
    Record(
        "polygamma", _FAMILY, parameters("n: int, x: tensor"), "The n-th derivative of digamma.", _polygamma, (T2, T1),
        "polygamma(1, x: f32[2, 3]) -> f32[2, 3]", call=Call("aten.polygamma.default"),
    ),
)  # fmt: skip
