"""NumPy in captured code: numbers, arrays that the code makes, and arrays from outside as tensors.

number  a constant of its class; from outside guarded by class and value
array   made by the code from known values: computed at once, made again by each run
outside array: its memory becomes an input of the graph (torch.from_numpy, tensor, as_tensor); the numbers of a small
        one are guarded where the code uses them, those of a large one are read by the plain code between two graphs;
        numbers are written into it by the graph
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.lookasides.torch_functions import TORCH_FUNCTIONS, leaves_of
from bytecap.nodes.array_calls import array_of, call_on_arrays
from bytecap.nodes.torch_calls import call_torch
from bytecap.objects.arrays.numpy_arrays import NUMPY, ArrayValue, OutsideArray, TracedArray, refusing_warnings
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Constant, Value
from bytecap.semantics.constant_folding import fold_call

# What reads or writes files, depends on hidden state, or writes into its arguments.
_IMPURE = frozenset(
    {
        "copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis", "save", "savez", "savetxt",
        "savez_compressed", "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "empty", "empty_like", "seterr",
        "frombuffer", "from_dlpack", "fromregex", "set_printoptions", "apply_along_axis", "apply_over_axes",
        "piecewise", "frompyfunc", "fromfunction", "shares_memory", "may_share_memory", "errstate", "getbufsize",
        "setbufsize",
    }
)  # fmt: skip
_HOMES = ("numpy", "numpy.linalg", "numpy.fft")
"""Modules of NumPy's functions; the last one is imported when it is first used."""
_MOST = 4096
"""How many numbers of an array a graph holds as data."""


def is_numpy_function(real: Any) -> bool:
    """Whether a callable of NumPy gives the same for the same arguments, and changes nothing."""
    if NUMPY is None:
        return False
    if isinstance(real, NUMPY.ufunc) or (isinstance(real, type) and issubclass(real, (NUMPY.generic, NUMPY.dtype))):
        return True
    name = getattr(real, "__name__", None)
    is_pure = isinstance(name, str) and name not in _IMPURE and callable(real)
    return is_pure and any(vars(sys.modules[home]).get(name) is real for home in _HOMES if home in sys.modules)


def call_numpy(tracer: Tracer, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call it now, if all arguments are known; as torch's calls, if the graph computes one of them."""
    if args and real in (NUMPY.asarray, NUMPY.array, NUMPY.ascontiguousarray) and isinstance(args[0], TensorValue):
        args = [array_of(tracer, args[0]), *args[1:]]
    if any(isinstance(leaf, TracedArray) for arg in (*args, *kwargs.values()) for leaf in leaves_of(tracer, arg)):
        return call_on_arrays(tracer, real, args, kwargs)
    if "out" in kwargs or "where" in kwargs:
        raise UnsupportedCall(f"numpy.{real.__name__}() with out= or where=")
    with refusing_warnings(f"numpy.{real.__name__}()"):
        return fold_call(tracer, real, args, kwargs)


def _from_numpy(tracer: Tracer, array: Value) -> Value:
    """torch.from_numpy: the memory of an outside array; a copy for an array that the code made."""
    if isinstance(array, TracedArray) and isinstance(array.example, NUMPY.ndarray):
        return call_torch(tracer, torch.Tensor.detach, [array.memory], {})
    if isinstance(array, OutsideArray):
        return array.tensor(tracer)
    if not isinstance(array, ArrayValue):
        return call_torch(tracer, torch.from_numpy, [array], {})
    array.lend()
    return _content(tracer, array, {})


def _maker(function: Callable[..., Any], *, copies: bool) -> Callable[..., Value]:
    """torch.tensor and its kin, which also take arrays and NumPy's numbers."""
    of_others = TORCH_FUNCTIONS.get(function)

    def make(tracer: Tracer, data: Value, **options: Value) -> Value:
        if isinstance(data, (OutsideArray, TracedArray)):
            return _of_outside(tracer, data, options, copies)
        if isinstance(data, ArrayValue):
            if not copies:
                data.lend()
            return _content(tracer, data, options)
        if isinstance(data, Constant) and _is_numpy(data):
            options = {"dtype": Constant(_dtype(data.value)), **options}
        if "dtype" not in options and any(_is_numpy(leaf) for leaf in leaves_of(tracer, data)):
            raise UnsupportedCall(f"torch.{function.__name__}() of a list of NumPy's numbers, without a dtype")
        if of_others is not None:
            return of_others(tracer, data, **options)
        return call_torch(tracer, function, [data], options)

    return make


def _is_numpy(value: Value) -> bool:
    is_scalar = isinstance(value, Constant) and NUMPY is not None and issubclass(value.python_type(), NUMPY.generic)
    return is_scalar or isinstance(value, (ArrayValue, OutsideArray))


def _of_outside(tracer: Tracer, data: OutsideArray | TracedArray, options: dict[str, Value], copies: bool) -> Value:
    options = dict(options)
    needs_grad = options.pop("requires_grad", None)
    if needs_grad is not None and needs_grad.truth(tracer):
        raise UnsupportedCall("a leaf that is made of an outside array")
    made = data.tensor(tracer)
    if options:
        return call_torch(tracer, torch.Tensor.to, [made], {**options, "copy": Constant(copies)})
    return call_torch(tracer, torch.Tensor.clone, [made], {}) if copies else made


def _content(tracer: Tracer, array: ArrayValue, options: dict[str, Value]) -> Value:
    """A new tensor with the numbers of a known array."""
    if array.real.size > _MOST:
        raise UnsupportedCall(f"a tensor of an array of {array.real.size} numbers")
    options = {"dtype": Constant(_dtype(array.real)), **options}
    made = call_torch(tracer, torch.tensor, [tracer.objects.fresh(array.real.reshape(-1).tolist())], options)
    return call_torch(tracer, torch.Tensor.reshape, [made, tracer.objects.fresh(array.real.shape)], {})


def _dtype(real: Any) -> torch.dtype:
    try:
        return torch.from_numpy(NUMPY.zeros(1, real.dtype)).dtype
    except TypeError:
        raise UnsupportedCall(f"a tensor of NumPy's {real.dtype}") from None


NUMPY_CALLS: dict[Any, Callable[..., Value]] = {
    torch.Tensor.numpy: array_of,
    torch.from_numpy: _from_numpy,
    torch.tensor: _maker(torch.tensor, copies=True),
    torch.as_tensor: _maker(torch.as_tensor, copies=False),
    torch.asarray: _maker(torch.asarray, copies=False),
}
