"""Complex numbers and spectra: complex tensors as pairs of reals, and the discrete Fourier transforms.

These are the only prims that take or give complex dtypes; other calls on complex tensors stay with ATen.
"""

from __future__ import annotations

from primops.prims.layouts import dense_stride, row_major, tensor
from primops.prims.record import Call, Constraint, Record, parameters
from stagewire.expr import Dim
from stagewire.types import TensorType

COMPLEX_OF = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}
REAL_OF = {complex_: real for real, complex_ in COMPLEX_OF.items()}
_X = tensor("float32", (2, 3))
_Z = tensor("complex64", (2, 3))


# --- rules ---------------------------------------------------------------------------------------------------------


def _complex(real: TensorType, imag: TensorType) -> tuple[TensorType, ...]:
    stride = dense_stride(real.shape, real.stride)
    return (TensorType(COMPLEX_OF[real.dtype], real.shape, stride, 0, real.device),)  # type: ignore[arg-type]


def _view_as_real(z: TensorType) -> tuple[TensorType, ...]:
    stride = (*(2 * step for step in z.stride), 1)
    return (TensorType(REAL_OF[z.dtype], (*z.shape, 2), stride, 0, z.device),)  # type: ignore[arg-type]


def _view_as_complex(x: TensorType) -> tuple[TensorType, ...]:
    return (tensor(COMPLEX_OF[x.dtype], x.shape[:-1], x.device),)


def _like(z: TensorType, *_: object) -> tuple[TensorType, ...]:
    return (TensorType(z.dtype, z.shape, dense_stride(z.shape, z.stride), 0, z.device),)


def _half(shape: tuple[Dim, ...], dim: int) -> tuple[Dim, ...]:
    return tuple(n // 2 + 1 if i == dim else n for i, n in enumerate(shape))


def _r2c(x: TensorType, dims: tuple[int, ...], normalization: int, onesided: bool) -> tuple[TensorType, ...]:
    shape = _half(x.shape, dims[-1]) if onesided else x.shape
    return (TensorType(COMPLEX_OF[x.dtype], shape, row_major(shape), 0, x.device),)  # type: ignore[arg-type]


def _c2r(z: TensorType, dims: tuple[int, ...], normalization: int, last: Dim) -> tuple[TensorType, ...]:
    shape = tuple(last if i == dims[-1] else n for i, n in enumerate(z.shape))
    return (TensorType(REAL_OF[z.dtype], shape, row_major(shape), 0, z.device),)  # type: ignore[arg-type]


# --- constraints ---------------------------------------------------------------------------------------------------


def _reals(*operands: object) -> str | None:
    bad = [x.dtype for x in operands if isinstance(x, TensorType) and x.dtype not in COMPLEX_OF]
    return f"{bad[0]} is half of no complex dtype" if bad else None


def _complexes(z: TensorType, *_: object) -> str | None:
    return None if z.dtype in REAL_OF else f"{z.dtype} is not complex"


def _parts(real: TensorType, imag: TensorType) -> str | None:
    if real.shape != imag.shape or real.dtype != imag.dtype:
        return f"{real.dtype}{list(real.shape)} and {imag.dtype}{list(imag.shape)}"
    return None


def _paired(x: TensorType) -> str | None:
    return None if x.shape and x.shape[-1] == 2 else f"the last dimension of {list(x.shape)} is not 2"


def _transformed(x: TensorType, dims: tuple[int, ...], *_: object) -> str | None:
    if dims and len(set(dims)) == len(dims) and all(0 <= d < len(x.shape) for d in dims):
        return None
    return f"dims {list(dims)} of rank {len(x.shape)}"


Z1 = Constraint("Z1", "Operands are float16, float32 or float64.", _reals, ("complex", (_Z, _Z)), frozenset(COMPLEX_OF))
Z2 = Constraint("Z2", "The operand is complex.", _complexes, ("view_as_real", (_X,)), frozenset(REAL_OF))
Z3 = Constraint(
    "Z3", "Both parts have one shape and one dtype.", _parts, ("complex", (_X, tensor("float32", (3,))))
)  # fmt: skip
Z4 = Constraint("Z4", "The last dimension has size 2.", _paired, ("view_as_complex", (_X,)))
Z5 = Constraint("Z5", "dims are distinct dimensions, at least one.", _transformed, ("fft_c2c", (_Z, (2,), 0, True)))

_FAMILY = "spectra"
RECORDS: tuple[Record, ...] = (
    Record(
        "complex", _FAMILY, parameters("real: tensor, imag: tensor"), "The complex numbers of these parts.",
        _complex, (Z1, Z3), "complex(real: f32[2, 3], imag: f32[2, 3]) -> c64[2, 3]",
        call=Call("aten.complex.default"),
    ),
    Record(
        "view_as_real", _FAMILY, parameters("z: tensor"), "Real and imaginary parts along a new last dimension.",
        _view_as_real, (Z2,), "view_as_real(z: c64[2, 3]) -> f32[2, 3, 2]", call=Call("aten.view_as_real.default"),
    ),
    Record(
        "view_as_complex", _FAMILY, parameters("x: tensor"), "The complex numbers whose parts lie along the last "
        "dimension.", _view_as_complex, (Z1, Z4), "view_as_complex(x: f32[2, 3, 2]) -> c64[2, 3]",
        call=Call("aten.view_as_complex.default"),
    ),
    Record(
        "conj", _FAMILY, parameters("z: tensor"), "The conjugates: imaginary parts negated.", _like, (Z2,),
        "conj(z: c64[2, 3]) -> c64[2, 3]", call=Call("aten._conj_physical.default"),
    ),
    Record(
        "fft_r2c", _FAMILY, parameters("x: tensor, dims: dims, normalization: int, onesided: bool"),
        "Discrete Fourier transform of reals along dims; onesided: only the first half of the last of them. "
        "normalization 0: none, 1: by the root of the count, 2: by the count.",
        _r2c, (Z1, Z5), "fft_r2c(x: f32[2, 8], [1], 0, true) -> c64[2, 5]", call=Call("aten._fft_r2c.default"),
    ),
    Record(
        "fft_c2r", _FAMILY, parameters("z: tensor, dims: dims, normalization: int, last_dim_size: size"),
        "The inverse of fft_r2c: reals from the half of a Hermitian spectrum; the last of dims gets this size.",
        _c2r, (Z2, Z5), "fft_c2r(z: c64[2, 5], [1], 2, 8) -> f32[2, 8]", call=Call("aten._fft_c2r.default"),
    ),
    Record(
        "fft_c2c", _FAMILY, parameters("z: tensor, dims: dims, normalization: int, forward: bool"),
        "Discrete Fourier transform along dims, or the inverse one; normalization as for fft_r2c.",
        _like, (Z2, Z5), "fft_c2c(z: c64[2, 8], [1], 0, true) -> c64[2, 8]", call=Call("aten._fft_c2c.default"),
    ),
)  # fmt: skip
