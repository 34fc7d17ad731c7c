"""NumPy on arrays that the graph computes: torch's own translation of NumPy, held against NumPy at capture.

call ::= NumPy on examples -> type of the result, what it shares memory with        nothing of the data is in it
       | torch's function of that name -> node*                                     the calls of torch that it makes

What differs in type, in form or in what shares memory is mended (a cast, a copy) or ends the graph. So does what NumPy
raises or warns of for the examples. NumPy's warnings of the numbers (a division by zero) are not given: data decides.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import compress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from absint.symbolic import hint_of
from absint.symbolic.size import is_unbacked
from bytecap.context_types import Tracer
from bytecap.errors import CannotCapture, StageError, UnsupportedCall
from bytecap.nodes.chosen_tensors import Choice
from bytecap.nodes.torch_calls import call_torch, to_host, wrap_result
from bytecap.objects.arrays.numpy_arrays import NUMPY, ArrayValue, OutsideArray, TracedArray, is_number
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import HANDLERS, NONE, Constant, PythonRaise, Value
from bytecap.objects.containers.sequences import ListValue, SliceValue, TupleValue
from bytecap.torch_capabilities import numpy_on_tensors

_REFUSED = frozenset(
    {
        "argsort", "eig", "eigh", "eigvals", "svd", "lstsq", "unique", "angle", "cbrt", "fix", "heaviside", "ldexp",
        "median", "modf", "sign", "slogdet", "resize",
    }
)  # fmt: skip
"""Where torch gives something else: another of several right results (the order of equal numbers, the sign of a
vector); something wrong for some numbers; an array of another size in place."""
_RAISED = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, Warning)
"""What NumPy and its translation raise of arguments; another error is a fault of the evaluator."""
_UFUNCS = {
    "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide", "mod": "remainder",
    "pow": "power", "and_": "bitwise_and", "or_": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift",
    "rshift": "right_shift", "lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal", "gt": "greater",
    "ge": "greater_equal", "neg": "negative", "pos": "positive", "add": "add", "matmul": "matmul", "invert": "invert",
}  # fmt: skip
"""What operators call."""


def array_of(tracer: Tracer, tensor: Value) -> TracedArray:
    """`tensor.numpy()`: the array over its memory; outside of grad mode of what has a gradient, too."""
    if isinstance(tensor, TensorValue) and tensor.abstract.requires_grad and not torch.is_grad_enabled():
        tensor = tensor.call_method(tracer, "detach", [], {})
    known: Any = tensor.abstract if isinstance(tensor, TensorValue) and tensor.cls is torch.Tensor else None
    if known is None or known.requires_grad or known.device.type != "cpu" or tracer.graph.is_transformed:
        raise UnsupportedCall("Tensor.numpy() of another tensor than a plain one on the CPU, which has no gradient")
    if known.dtype.is_complex or any(map(is_unbacked, known.meta.shape)):
        raise UnsupportedCall("Tensor.numpy() of complex numbers, which may be lazy conjugates, or of a size of data")
    sizes, steps = ([hint_of(each) for each in layout] for layout in (known.meta.shape, known.meta.stride))
    try:
        example = torch.empty_strided(sizes, steps, dtype=known.dtype).numpy()
    except TypeError as error:
        raise UnsupportedCall(f"Tensor.numpy(): {error}") from None
    example[...] = NUMPY.random.default_rng(0).random(sizes) * 1.5
    return TracedArray(tensor, example)


def call_on_arrays(
    tracer: Tracer, real: Callable[..., Any], args: list[Value], kwargs: dict[str, Value], name: str = ""
) -> Value:
    """A call of NumPy's; with a `name`, of an operator or method, which does the same on torch's arrays."""
    twins = numpy_on_tensors()
    homes = ((NUMPY, twins), (NUMPY.linalg, twins.linalg), (NUMPY.fft, twins.fft))
    asked = name or real.__name__
    same = [getattr(twin, asked, None) for home, twin in homes if vars(home).get(asked) is real]
    name, translation = asked, real if name else next(iter(same), None)
    is_refused = translation is None or name in _REFUSED or not {"out", "where"}.isdisjoint(kwargs)
    if is_refused or NUMPY.__version__.startswith("1.") or not {*NUMPY.geterr().values()} <= {"warn", "ignore"}:
        raise UnsupportedCall(f"NumPy's {name} of arrays that the graph computes")
    return _Call(tracer, name, real).run(real, translation, args, kwargs)


class _Call(TorchFunctionMode):
    """One call; as a mode, it writes down what is called of torch.

    arrays: those among the arguments, by torch's array that stands for each. copies: examples of those whose memory is
    not the graph's.
    """

    def __init__(self, tracer: Tracer, name: str, real: Any) -> None:
        super().__init__()
        self.ufunc = getattr(NUMPY, _UFUNCS.get(name, ""), real)
        self.is_elementwise = isinstance(self.ufunc, NUMPY.ufunc)
        self.tracer = tracer
        self.name = name
        self.arrays: dict[int, TracedArray] = {}
        self.copies: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        tensors, options = self.tracer.inputs.tensors, kwargs or {}
        if func is torch.as_tensor and "dtype" not in options and not isinstance(args[0], torch.Tensor):
            options = {**options, "dtype": func(*args).dtype}  # torch's translation sets another default for this call
        given = [wrap_result(self.tracer, arg, tensors) for arg in args]
        named = {key: wrap_result(self.tracer, value, tensors) for key, value in options.items()}
        found = call_torch(self.tracer, func, given, named)
        made = to_host(self.tracer, found)
        return found.cls(made) if isinstance(found, TupleValue) and found.cls is not tuple else made

    def run(self, real: Any, translation: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        pairs = [self._argument(arg) for arg in args]
        named = {key: self._argument(value) for key, value in kwargs.items()}
        examples = [pair[0] for pair in pairs]
        try:
            with NUMPY.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("error")
                expected = real(*examples, **{key: pair[0] for key, pair in named.items()})
            self._refuse_power(expected, examples)
            with self:
                given = [pair[1] for pair in pairs] if named else self._as_computed(pairs)
                if self.name.strip("_") == "setitem" and NUMPY.ndim(examples[2]):
                    self._refuse_places(examples[1])
                    # NumPy writes as if the numbers had been read before, torch does not.
                    given[2] = given[2].copy() if id(given[2]) in self.arrays else given[2]
                found = translation(*given, **{key: pair[1] for key, pair in named.items()})
        except (CannotCapture, StageError):
            raise
        except PythonRaise as error:
            raise self._refusal(f"torch raises {error.value.python_type().__name__}") from error
        except _RAISED as error:
            raise self._refusal(f"{type(error).__name__}: {error}") from error
        return self._result(expected, found)

    def _refusal(self, why: str) -> UnsupportedCall:
        return UnsupportedCall(f"NumPy's {self.name} of arrays that the graph computes: {why}")

    def _refuse_power(self, expected: Any, examples: list[Any]) -> None:
        """NumPy raises where a whole number is taken to a negative power; its power of 0.5 is a root."""
        if "pow" in self.name and expected.dtype.kind in "iu" and hasattr(examples[1], "dtype"):
            raise self._refusal("whole numbers")
        if "pow" in self.name and isinstance(examples[1], float) and examples[1] == 0.5:
            raise self._refusal("a square root")

    def _refuse_places(self, key: Any) -> None:
        """Of several numbers for one place NumPy writes the last, torch any."""
        for part in key if isinstance(key, tuple) else (key,):
            if isinstance(part, (list, NUMPY.ndarray)) and NUMPY.asarray(part).dtype.kind in "iu":
                raise self._refusal("several numbers at places of an array")

    def _as_computed(self, pairs: list[Any]) -> list[Any]:
        """torch's arguments, those of an elementwise function as arrays of the types that NumPy computes it with."""
        if not self.is_elementwise:
            return [pair[1] for pair in pairs]
        kinds = [type(each) if type(each) in (int, float, complex) else NUMPY.asarray(each).dtype for each, _ in pairs]
        types = self.ufunc.resolve_dtypes((*kinds, *[None] * self.ufunc.nout))
        return [
            twin.astype(wanted.name) if id(twin) in self.arrays and kind != wanted else twin
            for (_, twin), kind, wanted in zip(pairs, kinds, types, strict=False)
        ]

    def _argument(self, value: Value) -> tuple[Any, Any]:
        """What NumPy is given for it, and what torch is."""
        host = value.host() if isinstance(value, Constant) else None
        if isinstance(host, torch.SymInt) and not (self.is_elementwise or self.name[1:] in _UFUNCS):
            return hint_of(host), host
        if isinstance(value, (OutsideArray, ArrayValue)) or (isinstance(value, Constant) and is_number(value.value)):
            copied = HANDLERS[torch.tensor](self.tracer, value)
            value = TracedArray(copied, value.value if isinstance(value, Constant) else value.real.copy("K"))
            self.copies.append(value.example)
        if isinstance(value, TracedArray):
            twin = numpy_on_tensors().ndarray(value.memory.abstract)
            self.arrays[id(twin)] = value
            return value.example, twin
        if isinstance(value, (TupleValue, ListValue)):
            pairs = [self._argument(item) for item in value.values(self.tracer)]
            return value.builtin(pair[0] for pair in pairs), value.builtin(pair[1] for pair in pairs)
        if isinstance(value, SliceValue):
            pairs = [self._argument(item) for item in (value.start, value.stop, value.step)]
            return slice(*[pair[0] for pair in pairs]), slice(*[pair[1] for pair in pairs])
        if isinstance(value, TensorValue):
            raise self._refusal("a tensor among its arguments")
        given = value.concrete()
        is_dtype = isinstance(given, NUMPY.dtype) or (isinstance(given, type) and issubclass(given, NUMPY.generic))
        return given, NUMPY.dtype(given).name if is_dtype else given

    def _result(self, expected: Any, found: Any) -> Value:
        if isinstance(expected, (NUMPY.ndarray, NUMPY.generic)) and hasattr(found, "tensor"):
            if any(NUMPY.may_share_memory(expected, example) for example in self.copies):
                raise self._refusal("it is a view of an array that the graph does not compute")
            known = self.arrays.get(id(found))
            return known if known is not None and known.example is expected else self._array(expected, found.tensor)
        if isinstance(found, (tuple, list)) and isinstance(expected, (tuple, list)) and len(found) == len(expected):
            items = [self._result(*pair) for pair in zip(expected, found, strict=True)]
            return ListValue(items) if type(expected) is list else TupleValue(items, cls=type(expected))
        if isinstance(found, torch.SymInt) or (type(found) is type(expected) and found == expected):
            return NONE if found is None else self.tracer.objects.fresh(found)
        raise self._refusal(f"torch gives a {type(found).__name__} in the place of a {type(expected).__name__}")

    def _array(self, expected: Any, tensor: Any) -> TracedArray:
        """The result, of the type of `expected`."""
        value: Any = self.tracer.inputs.value_of(tensor)
        if value is None:
            raise self._refusal("torch's is a known tensor")
        wanted = torch.from_numpy(NUMPY.empty(0, expected.dtype)).dtype
        if tensor.dtype is not wanted:
            kinds = [(each.is_floating_point, each.is_complex, each is torch.bool) for each in (wanted, tensor.dtype)]
            if kinds[0] != kinds[1] or wanted.itemsize >= tensor.dtype.itemsize:
                raise self._refusal(f"it is of {expected.dtype}, torch's of {tensor.dtype}")
            value = call_torch(self.tracer, torch.Tensor.to, [value, Constant(wanted)], {})
        if expected.shape == () and tensor.numel() == 1:
            value = call_torch(self.tracer, torch.Tensor.reshape, [value, TupleValue([])], {})
        arrays, memory = list(self.arrays.values()), value.abstract.storage_record
        shares = [one.memory.abstract.storage_record is memory for one in arrays]
        should = [NUMPY.may_share_memory(expected, one.example) for one in arrays]
        is_like = self._is_like(expected, value)
        if any(should) and (not is_like or shares != should or not expected.flags.writeable):
            value = self._stand_in(expected, value, list(compress(arrays, should)))
        elif not any(should) and (any(shares) or not is_like or wanted.is_complex):  # (it may be a lazy conjugate)
            value = self._copy(expected, value)
        return TracedArray(value, expected)

    def _copy(self, expected: Any, value: Value) -> Any:
        """A copy whose dimensions follow each other in memory as they do in `expected`."""
        order = sorted(range(expected.ndim), key=lambda dim: -expected.strides[dim])
        back = sorted(range(expected.ndim), key=order.__getitem__)
        orders = [TupleValue([Constant(dim) for dim in dims]) for dims in (order, back)]
        value = call_torch(self.tracer, torch.Tensor.permute, [value, orders[0]], {})
        layout: Value = Constant(torch.contiguous_format)
        value = call_torch(self.tracer, torch.Tensor.clone, [value], {"memory_format": layout})
        return call_torch(self.tracer, torch.Tensor.permute, [value, orders[1]], {})

    def _stand_in(self, expected: Any, value: Value, arrays: list[TracedArray]) -> Any:
        """A copy in the place of a view of these arrays, where nobody can tell."""
        copied = self._copy(expected, value)
        if self.tracer.graph.is_body:
            raise self._refusal("it is a view")
        storages = [one.abstract.storage_record for one in (copied, *[array.memory for array in arrays])]
        what = f"NumPy's {self.name}, a view of which the graph has a copy"
        self.tracer.choices.append(Choice(copied, tuple([(one, one.version) for one in storages]), what))
        return copied

    def _is_like(self, expected: Any, value: Any) -> bool:
        """Whether it has these sizes and strides, as far as they are known."""
        meta = value.abstract.meta
        if any(map(is_unbacked, meta.shape)):
            return True
        sizes, steps = ([hint_of(each) for each in layout] for layout in (meta.shape, meta.stride))
        if tuple(sizes) != expected.shape:
            raise self._refusal(f"it is of {expected.shape}, torch's of {tuple(sizes)}")
        rows = zip(sizes, steps, expected.strides, strict=True)
        return 0 in sizes or all(size == 1 or step * expected.itemsize == there for size, step, there in rows)
