"""Softmax, layer, group and batch normalisation, forward and backward, in float32 for halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from primops.builder import Builder, Value, opmath
from primops.decompositions.operands import Table, count_of, wrap
from primops.errors import Decline
from stagewire.types import NoneType


# --- softmax -------------------------------------------------------------------------------------------------------
def _dims(x: Value, dim: int) -> tuple[int, ...]:
    return (wrap(dim, x.rank),) if x.rank else ()


def softmax(p: Builder, x: Value, dim: int, half_to_float: bool = False) -> Value:
    dims = _dims(x, dim)
    x = p.convert(x, opmath(x.dtype))
    powers = p.exp(p.sub(x, p.spread(p.reduced("amax", x, dims), x.shape, dims)))
    total = p.spread(p.reduced("sum", powers, dims), x.shape, dims)
    return p.convert(p.div(powers, total), p.out.dtype)


def safe_softmax(p: Builder, x: Value, dim: int, dtype: Any = None) -> Value:
    """softmax with 0 in rows that are all -inf."""
    dims = _dims(x, dim)
    masked = p.reduced("all", p.eq(x, float("-inf")), dims)
    y = softmax(p, p.convert(x, p.out.dtype), dim)
    return p.where(p.spread(masked, x.shape, dims), 0.0, y)


def log_softmax(p: Builder, x: Value, dim: int, half_to_float: bool = False) -> Value:
    dims = _dims(x, dim)
    x = p.convert(x, opmath(x.dtype))
    shifted = p.sub(x, p.spread(p.reduced("amax", x, dims), x.shape, dims))
    total = p.log(p.reduced("sum", p.exp(shifted), dims))
    return p.convert(p.sub(shifted, p.spread(total, x.shape, dims)), p.out.dtype)


def softmax_backward(p: Builder, grad: Value, out: Value, dim: int, input_dtype: Any) -> Value:
    dims = _dims(out, dim)
    grad, out = (p.convert(v, opmath(v.dtype)) for v in (grad, out))
    total = p.spread(p.reduced("sum", p.mul(grad, out), dims), out.shape, dims)
    return p.convert(p.mul(p.sub(grad, total), out), p.out.dtype)


def log_softmax_backward(p: Builder, grad: Value, out: Value, dim: int, input_dtype: Any) -> Value:
    dims = _dims(out, dim)
    grad, out = (p.convert(v, opmath(v.dtype)) for v in (grad, out))
    total = p.spread(p.reduced("sum", grad, dims), out.shape, dims)
    return p.convert(p.sub(grad, p.mul(p.exp(out), total)), p.out.dtype)


# --- shared --------------------------------------------------------------------------------------------------------
def _in(p: Builder, x: Value | None, dtype: str) -> Value | None:
    return None if x is None else p.convert(x, dtype)


def _as(p: Builder, x: Value, type: Any) -> Value:
    """x in the dtype and shape of a result."""
    return p.reshape(p.convert(x, type.dtype), type.shape)


def _wanted(p: Builder, output_mask: Sequence[bool], *gradients: Callable[[], Value]) -> tuple[Value | None, ...]:
    """Those gradients that the call asks for."""
    types = zip(output_mask, p.results, gradients, strict=False)
    return tuple([find() if asked and not isinstance(type, NoneType) else None for asked, type, find in types])


def _affine(p: Builder, x: Value, weight: Value | None, bias: Value | None, spreading: Any) -> Value:
    if weight is not None:
        x = p.mul(x, spreading(weight))
    return x if bias is None else p.add(x, spreading(bias))


def _normalised(p: Builder, x: Value, dims: tuple[int, ...], eps: float) -> tuple[Value, Value, Value]:
    """(x - mean) / sqrt(var + eps) over dims; mean and 1 / sqrt(var + eps)."""
    var, mean = p.var_mean(x, dims, 0)
    rstd = p.rsqrt(p.add(var, float(eps)))
    return p.mul(p.sub(x, p.spread(mean, x.shape, dims)), p.spread(rstd, x.shape, dims)), mean, rstd


def _centred(p: Builder, grad: Value, normal: Value, dims: tuple[int, ...], *, moved: bool = True) -> Value:
    """grad - mean(grad) - normal * mean(grad * normal) over dims. moved: whether the mean was taken off."""
    shape, mean = grad.shape, None
    if moved:
        mean = p.per_count(p.reduced("sum", grad, dims), shape, dims)
    slope = p.per_count(p.reduced("sum", p.mul(grad, normal), dims), shape, dims)
    grad = grad if mean is None else p.sub(grad, p.spread(mean, shape, dims))
    return p.sub(grad, p.mul(normal, p.spread(slope, shape, dims)))


# --- layer normalisation -------------------------------------------------------------------------------------------
def layer_norm(
    p: Builder, x: Value, normalized_shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, ...]:
    """Over the last dimensions, * weight + bias; also mean and 1 / sqrt(var + eps)."""
    inner = opmath(x.dtype)
    if 0 in normalized_shape:
        raise Decline("rows without elements, of which ATen says that the mean is 0")
    dims = tuple(range(x.rank - len(normalized_shape), x.rank))
    normal, mean, rstd = _normalised(p, p.convert(x, inner), dims, eps)
    out = _affine(p, normal, _in(p, weight, inner), _in(p, bias, inner), lambda v: p.broadcast(v, x.shape))
    return p.convert(out, x.dtype), _as(p, mean, p.results[1]), _as(p, rstd, p.results[2])


def layer_norm_backward(
    p: Builder, grad: Value, x: Value, normalized_shape: Sequence[int], mean: Value | None, rstd: Value,
    weight: Value | None, bias: Value | None, output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """mean: None for that of the root of the mean square alone."""
    inner = opmath(x.dtype)
    axis = x.rank - len(normalized_shape)
    dims, outer = tuple(range(axis, x.rank)), tuple(range(axis))
    grad, normal = p.convert(grad, inner), p.convert(x, inner)
    mean, rstd = _in(p, mean, inner), p.convert(rstd, inner)
    scale = p.broadcast(rstd, x.shape)
    normal = p.mul(normal if mean is None else p.sub(normal, p.broadcast(mean, x.shape)), scale)

    def to_x() -> Value:
        weighted = grad if weight is None else p.mul(grad, p.broadcast(p.convert(weight, inner), x.shape))
        return p.convert(p.mul(_centred(p, weighted, normal, dims, moved=mean is not None), scale), x.dtype)

    return _wanted(
        p, output_mask, to_x,
        lambda: _as(p, p.reduced("sum", p.mul(grad, normal), outer), p.results[1]),
        lambda: _as(p, p.reduced("sum", grad, outer), p.results[2]),
    )  # fmt: skip


_EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}


def rms_norm(p: Builder, x: Value, normalized_shape: Sequence[int], weight: Value | None, eps: float | None) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight; also the reciprocal root. Without eps it is that of `inner`."""
    inner = opmath(x.dtype)
    dims = tuple(range(x.rank - len(normalized_shape), x.rank))
    wide = p.convert(x, inner)
    mean = p.per_count(p.reduced("sum", p.mul(wide, wide), dims), x.shape, dims)
    rstd = p.rsqrt(p.add(mean, _EPSILON[inner] if eps is None else float(eps)))
    out = p.mul(wide, p.spread(rstd, x.shape, dims))
    out = _affine(p, out, _in(p, weight, inner), None, lambda v: p.broadcast(v, x.shape))
    return p.convert(out, p.out.dtype), _as(p, rstd, p.results[1])


# --- group normalisation -------------------------------------------------------------------------------------------
def group_norm(
    p: Builder, x: Value, weight: Value | None, bias: Value | None, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> tuple[Value, ...]:  # fmt: skip
    inner = opmath(x.dtype)
    wide = p.reshape(p.convert(x, inner), (N, group, C // group, HxW))
    normal, mean, rstd = _normalised(p, wide, (2, 3), eps)
    normal = p.reshape(normal, x.shape)
    out = _affine(p, normal, _in(p, weight, inner), _in(p, bias, inner), lambda v: p.along(v, x.shape, 1))
    return p.convert(out, x.dtype), _as(p, mean, p.results[1]), _as(p, rstd, p.results[2])


def group_norm_backward(
    p: Builder, grad: Value, x: Value, mean: Value, rstd: Value, weight: Value | None, N: Any, C: Any, HxW: Any,
    group: int, output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    inner = opmath(x.dtype)
    grouped, flat = (N, group, C // group, HxW), (N, C, HxW)
    grad, wide, mean, rstd = (p.convert(v, inner) for v in (grad, x, mean, rstd))
    scale = p.spread(rstd, grouped, (2, 3))
    normal = p.mul(p.sub(p.reshape(wide, grouped), p.spread(mean, grouped, (2, 3))), scale)
    flat_grad = p.reshape(grad, flat)

    def to_x() -> Value:
        weighted = grad if weight is None else p.mul(grad, p.along(p.convert(weight, inner), x.shape, 1))
        centred = _centred(p, p.reshape(weighted, grouped), normal, (2, 3))
        return p.convert(p.reshape(p.mul(centred, scale), x.shape), x.dtype)

    return _wanted(
        p, output_mask, to_x,
        lambda: _as(p, p.reduced("sum", p.mul(flat_grad, p.reshape(normal, flat)), (0, 2)), p.results[1]),
        lambda: _as(p, p.reduced("sum", flat_grad, (0, 2)), p.results[2]),
    )  # fmt: skip


# --- batch normalisation -------------------------------------------------------------------------------------------
def _all_but_channels(x: Value) -> tuple[int, ...]:
    return tuple(i for i in range(x.rank) if i != 1)


def _batch_norm(
    p: Builder, x: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, training: bool, momentum: float, eps: float,
) -> tuple[Value, Value, Value, Value | None, Value | None]:  # fmt: skip
    """Output, mean, reciprocal root of var + eps, and the new running statistics (None without)."""
    inner, dims = opmath(x.dtype), _all_but_channels(x)
    wide = p.convert(x, inner)
    new_mean, new_var = running_mean, running_var
    if training:
        var, mean = p.var_mean(wide, dims, 0)
        if running_mean is not None:
            new_mean = _moved(p, running_mean, mean, momentum)
        if running_var is not None:
            new_var = _moved(p, running_var, _unbiased(p, wide, var, dims), momentum)
    elif running_mean is None or running_var is None:
        raise Decline("evaluation without statistics")
    else:
        mean, var = (p.convert(v, opmath(v.dtype)) for v in (running_mean, running_var))
        mean, var = (p.convert(v, inner) for v in (mean, var))
    rstd = p.rsqrt(p.add(var, float(eps)))
    normal = p.mul(p.sub(wide, p.along(mean, x.shape, 1)), p.along(rstd, x.shape, 1))
    out = _affine(p, normal, _in(p, weight, inner), _in(p, bias, inner), lambda v: p.along(v, x.shape, 1))
    return p.convert(out, x.dtype), mean, rstd, new_mean, new_var


def _unbiased(p: Builder, x: Value, var: Value, dims: tuple[int, ...]) -> Value:
    """The variance with Bessel's correction; counted anew where the count is symbolic."""
    count = count_of(x.shape, dims)
    if not isinstance(count, int):
        return p.var_mean(x, dims, 1)[0]
    return p.mul(var, count / (count - 1) if count > 1 else float("nan"))


def _moved(p: Builder, running: Value, batch: Value, momentum: float) -> Value:
    """momentum * batch + (1 - momentum) * running, in the dtype of running."""
    old = p.convert(running, opmath(running.dtype))
    new = p.add(p.mul(p.convert(batch, old.dtype), float(momentum)), p.mul(old, 1.0 - momentum))
    return p.convert(new, running.dtype)


def _statistic(p: Builder, x: Value, type: Any) -> Value:
    """A saved statistic in a result's type; eager leaves it empty where it saves none."""
    if type.shape == (0,) and x.shape != (0,):
        return p.full((0,), 0.0, type.dtype)
    return p.convert(x, type.dtype)


def batch_norm_functional(p: Builder, x: Value, *arguments: Any) -> Any:
    out, mean, rstd, new_mean, new_var = _batch_norm(p, x, *arguments)
    return out, _statistic(p, mean, p.results[1]), _statistic(p, rstd, p.results[2]), new_mean, new_var


def batch_norm(
    p: Builder, x: Value, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """native_batch_norm where it writes no statistics; where it does the call is not functional and stays ATen's."""
    if training and mean is not None:
        raise Decline("native_batch_norm writes its running statistics")
    return batch_norm_functional(p, x, weight, bias, mean, var, training, momentum, eps)[:3]


def batch_norm_backward(
    p: Builder, grad: Value, x: Value, weight: Value | None, running_mean: Value | None, running_var: Value | None,
    save_mean: Value | None, save_invstd: Value | None, train: bool, eps: float, output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    inner, dims = opmath(x.dtype), _all_but_channels(x)
    if train:
        mean, rstd = p.convert(save_mean, inner), p.convert(save_invstd, inner)  # type: ignore[arg-type]
    elif running_mean is None or running_var is None:
        raise Decline("evaluation without statistics")
    else:
        mean = p.convert(running_mean, inner)
        rstd = p.rsqrt(p.add(p.convert(running_var, inner), float(eps)))
    grad = p.convert(grad, inner)
    shape = x.shape
    normal = p.mul(p.sub(p.convert(x, inner), p.along(mean, shape, 1)), p.along(rstd, shape, 1))

    def to_x() -> Value:
        scale = rstd if weight is None else p.mul(rstd, p.convert(weight, inner))
        inward = _centred(p, grad, normal, dims) if train else grad
        return p.convert(p.mul(inward, p.along(scale, shape, 1)), x.dtype)

    return _wanted(
        p, output_mask, to_x,
        lambda: _as(p, p.reduced("sum", p.mul(grad, normal), dims), p.results[1]),
        lambda: _as(p, p.reduced("sum", grad, dims), p.results[2]),
    )  # fmt: skip


TABLE: Table = {
    "aten._softmax.default": softmax,
    "aten._safe_softmax.default": safe_softmax,
    "aten._log_softmax.default": log_softmax,
    "aten._softmax_backward_data.default": softmax_backward,
    "aten._log_softmax_backward_data.default": log_softmax_backward,
    "aten.native_layer_norm.default": layer_norm,
    "aten.native_layer_norm_backward.default": layer_norm_backward,
    "aten._fused_rms_norm.default": rms_norm,
    "aten._fused_rms_norm_backward.default": lambda p, grad, x, shape, rstd, weight, output_mask: layer_norm_backward(
        p, grad, x, shape, None, rstd, weight, None, output_mask
    ),
    "aten.native_group_norm.default": group_norm,
    "aten.native_group_norm_backward.default": group_norm_backward,
    "aten.native_batch_norm.default": batch_norm,
    "aten._native_batch_norm_legit_functional.default": batch_norm_functional,
    "aten._native_batch_norm_legit.no_stats": lambda p, x, w, b, *rest: batch_norm(p, x, w, b, None, None, *rest),
    "aten._native_batch_norm_legit_no_training.default": (
        lambda p, x, w, b, mean, var, *rest: batch_norm(p, x, w, b, mean, var, False, *rest)
    ),
    "aten.native_batch_norm_backward.default": batch_norm_backward,
}
