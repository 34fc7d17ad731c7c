"""Calls of ATen with real operands: those of torch's operator database, forward and backward, and alterations of them.

    call       ::= target args kwargs
    alteration ::= layout | dtype | floats | size | rank | number | values | magnitudes | first | together

    for call in recorded_calls()["aten.add.Tensor"]:
        altered(call, random.Random(0))

Eager is the oracle of each, so that an alteration need not be one that it takes. Needs the `testing` extra.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from absint.meta import Meta, contiguous, from_tensor, to_wire
from absint.mode import AbstractMode, abstract_call
from absint.symbolic import ShapeEnv, make_size
from absint.targets import resolve
from absint.tensor import AbstractTensor
from absint.testing.opinfo import error_inputs, op_infos, sample_inputs
from stagewire.capture import holds
from stagewire.types import TensorType

__all__ = [
    "PARTS",
    "REFUSALS",
    "Call",
    "SymbolicCall",
    "abstract",
    "altered",
    "in_steps",
    "is_backward",
    "one_step_away",
    "recorded_calls",
    "refused_calls",
    "resized",
    "run",
    "run_backward",
    "runs",
    "seeds",
    "sizes_of",
    "symbolic",
    "trusts",
]

SAMPLES, CALLS = 30, 4
"""Samples of each row of the database; calls of each operator that are kept."""
DATABASES = ("op_db", "foreach_unary_op_db", "foreach_binary_op_db", "foreach_pointwise_op_db", "foreach_reduce_op_db",
             "foreach_other_op_db")  # fmt: skip
SKIPPED = ("sparse", "pca_lowrank", "svd_lowrank", "grid_sampler_3d", "bmm_triton")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
HOSTILE = (0.0, math.nan, -0.0, math.inf, 1.0, -math.inf, 1e-30, -1.0)
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""What eager raises of a call that it does not take."""
PARTS = 24
"""In so many the operators are tried, so that processes share them."""
TRUSTING = frozenset((
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "_ctc_loss", "_ctc_loss_backward",
    "_embedding_bag", "_embedding_bag_backward", "_embedding_bag_per_sample_weights_backward", "_fft_c2c", "_fft_c2r",
    "_fft_r2c", "_native_batch_norm_legit", "_pdist_backward", "_pdist_forward", "_safe_softmax",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_segment_reduce_backward", "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward", "avg_pool2d_backward",
    "batch_norm_backward", "embedding_dense_backward", "fractional_max_pool3d_backward", "grid_sampler_3d_backward",
    "lu_unpack", "max_pool3d_with_indices_backward", "native_batch_norm", "native_batch_norm_backward",
    "native_group_norm_backward", "native_layer_norm_backward", "nll_loss2d_backward", "nll_loss_backward",
    "reflection_pad2d_backward", "segment_reduce",
))  # fmt: skip
"""Operators that read, or write, beyond the memory of operands that misfit."""
runs = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)
"""Of properties of such calls: the same draws in each run, and no search for smaller ones."""
seeds = st.integers(0, 2**32 - 1)
NO_MODE = contextlib.nullcontext()
_OPERANDS = 4
"""So many of a call are varied one at a time."""
FIXED = ("pin_memory", "generator", "layout", "device")
"""Arguments that stay."""


class Call(NamedTuple):
    """An operator of ATen by name, and what it is called with."""

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        """With types in place of tensors."""
        args, kwargs = tree_map(
            lambda x: from_tensor(x) if isinstance(x, torch.Tensor) else x, (self.args, self.kwargs)
        )
        return f"{self.target}{args} {kwargs}"


def sizes_of(call: Call) -> list[int]:
    """The sizes of its tensors that may be a symbol."""
    leaves = tree_leaves((call.args, call.kwargs))
    return sorted({n for x in leaves if isinstance(x, torch.Tensor) for n in x.shape if n > 2})


def run(call: Call, mode: AbstractContextManager[Any] = NO_MODE) -> Any:
    """What eager makes, in a mode, of copies of the operands; the mode sees nothing of the copying."""
    args, kwargs = tree_map(_own, (call.args, call.kwargs))
    torch.default_generator.manual_seed(0)  # CPU's alone: torch.manual_seed writes a stack down for each other device
    with warnings.catch_warnings(), torch.no_grad(), mode:
        warnings.simplefilter("ignore")
        return resolve(call.target)(*args, **kwargs)


def run_backward(call: Call, mode: AbstractContextManager[Any] = NO_MODE) -> None:
    """Eager's backward of the call, as far as it has one, in a mode as `run`'s."""

    def trained(leaf: Any) -> Any:
        copy = _own(leaf)
        is_float = isinstance(copy, torch.Tensor) and (copy.is_floating_point() or copy.is_complex())
        return copy.requires_grad_() if is_float else copy

    args, kwargs = tree_map(trained, (call.args, call.kwargs))
    torch.default_generator.manual_seed(0)
    with warnings.catch_warnings(), contextlib.suppress(*REFUSALS), mode:
        warnings.simplefilter("ignore")
        made = resolve(call.target)(*args, **kwargs)
        roots = [x for x in tree_leaves(made) if isinstance(x, torch.Tensor) and x.requires_grad]
        torch.autograd.backward(roots, [torch.ones_like(x) for x in roots])


def _own(leaf: Any) -> Any:
    """A copy that lies in memory as the original does."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
        return leaf
    memory = torch.empty(0, dtype=leaf.dtype).set_(leaf.detach().untyped_storage().clone())  # type: ignore[call-overload]
    return torch.as_strided(memory, leaf.shape, leaf.stride(), leaf.storage_offset())


def abstract(call: Call) -> Any:
    """What the call gives on types."""
    args, kwargs = tree_map(_abstract, (call.args, call.kwargs))
    with torch.no_grad():
        return abstract_call(resolve(call.target), args, kwargs, mode=AbstractMode())


def _abstract(leaf: Any) -> Any:
    return AbstractTensor(from_tensor(leaf)) if isinstance(leaf, torch.Tensor) else leaf


class SymbolicCall(NamedTuple):
    """A call with a symbol, n, for one size: types in place of tensors, the types of its results, what was assumed."""

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[TensorType | None, ...]
    env: ShapeEnv

    def accepts(self, size: int) -> bool:
        """Whether what was assumed holds for n."""
        return all(holds(relation, {"n": size}) for relation in self.env.relations)


def symbolic(call: Call, old: int) -> SymbolicCall:
    """The call on row-major types, in which n stands for every size and number that is `old`."""
    env = ShapeEnv()
    size: Any = make_size(env, env.create("n", hint=old))

    def as_type(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return contiguous([size if n == old else n for n in leaf.shape], leaf.dtype)
        return size if type(leaf) is int and leaf == old else leaf

    args, kwargs = tree_map(as_type, (call.args, call.kwargs))
    given = tree_map(lambda x: AbstractTensor(x) if isinstance(x, Meta) else x, (args, kwargs))
    with torch.no_grad():
        made = abstract_call(resolve(call.target), *given, mode=AbstractMode())
    results = [to_wire(x.meta) if isinstance(x, AbstractTensor) else None for x in tree_leaves(made)]
    return SymbolicCall(call.target, args, kwargs, tuple(results), env)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, dict[str, Call]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            func.namespace == "aten"
            and not func._schema.is_mutable
            and all(map(_is_plain, tree_leaves((args, kwargs))))
        ):
            known = self.calls.setdefault(str(func), {})
            known.setdefault(_key(args, kwargs), Call(str(func), *tree_map(_own, (args, kwargs))))
        return func(*args, **kwargs)


def _is_plain(leaf: Any) -> bool:
    if not isinstance(leaf, torch.Tensor):
        return not isinstance(leaf, torch.Generator)
    kinds = torch.Tensor, torch.nn.Parameter
    small = (
        type(leaf) in kinds
        and "float8" not in str(leaf.dtype)
        and leaf.layout is torch.strided
        and leaf.untyped_storage().nbytes() <= 1 << 16
    )
    return small and leaf.device.type == "cpu" and not (leaf.is_quantized or leaf.is_conj() or leaf.is_neg())


def _key(args: Any, kwargs: Any) -> str:
    """Types and attributes."""
    return repr(
        tree_map(lambda x: (x.dtype, x.shape, x.stride()) if isinstance(x, torch.Tensor) else x, (args, kwargs))
    )


@cache
def recorded_calls(
    part: int = 0, parts: int = 1, among: int = SAMPLES, kept: int = CALLS
) -> dict[str, tuple[Call, ...]]:
    """Calls by operator, unlike in types and attributes, of every so many-th row of the database.

    among: how many samples of a row are looked at. kept: calls of an operator, one of each kind first. All are spread,
    since neighbours are alike.
    """
    return {target: _spread(calls, kept) for target, calls in _calls(part, parts, among)}


@cache
def _calls(part: int, parts: int, among: int) -> list[tuple[str, tuple[Call, ...]]]:
    return _recorded(lambda recorder, info: _record(recorder, info, among), part, parts)


@cache
def refused_calls(part: int = 0, parts: int = 1) -> tuple[Call, ...]:
    """Those that the inputs come to of which the database knows that they are wrong."""
    return tuple([call for _, calls in _recorded(_record_errors, part, parts) for call in calls])


def _recorded(record: Callable[[_Recorder, Any], None], part: int, parts: int) -> list[tuple[str, tuple[Call, ...]]]:
    recorder = _Recorder()
    state, stream = random.getstate(), torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in _rows()[part::parts]:
            with contextlib.suppress(AssertionError, *REFUSALS):  # without samples in this environment
                record(recorder, info)
    random.setstate(state)
    torch.set_rng_state(stream)
    return [(target, tuple(calls.values())) for target, calls in sorted(recorder.calls.items())]


@cache
def _rows() -> list[Any]:
    return [info for info in op_infos((), DATABASES) if not any(word in info.name for word in SKIPPED)]


def _record(recorder: _Recorder, info: Any, among: int) -> None:
    supported = info.supported_dtypes("cpu")
    dtype = next(one for one in (*FLOATS, torch.int64, torch.bool, *supported) if one in supported)
    trained = bool(info.supports_autograd) and dtype in info.supported_backward_dtypes("cpu")
    samples = list(itertools.islice(sample_inputs(info, dtype, trained), among))
    for sample in samples[:: max(1, math.ceil(len(samples) / SAMPLES))]:
        try:
            with recorder:
                made = info.op(sample.input, *sample.args, **sample.kwargs)
                roots = [x for x in tree_leaves(made) if isinstance(x, torch.Tensor) and x.requires_grad]
                torch.autograd.backward(roots, [torch.rand_like(x) + 0.5 for x in roots])
        except (AssertionError, *REFUSALS):
            continue  # a sample for other builds of torch


def _record_errors(recorder: _Recorder, info: Any) -> None:
    for case in error_inputs(info):
        sample = case.sample_input
        with contextlib.suppress(AttributeError, *REFUSALS), recorder:
            info.op(sample.input, *sample.args, **sample.kwargs)


def _spread(calls: tuple[Call, ...], most: int) -> tuple[Call, ...]:
    kinds = {_kind(call): call for call in reversed(calls)}
    chosen = [*kinds.values()][::-1][:most]
    others = [call for call in calls[:: max(1, len(calls) // most)] if not any(call is one for one in chosen)]
    return (*chosen, *others[: most - len(chosen)])


def _kind(call: Call) -> str:
    """Which arguments are given, ranks, and flags."""
    coarse = tree_map(lambda x: x.dim() if isinstance(x, torch.Tensor) else x if type(x) is bool else type(x), call[1:])
    return repr([coarse[0], sorted(coarse[1].items())])


# --- alterations -----------------------------------------------------------------------------------------------------
def altered(call: Call, order: random.Random, kinds: tuple[str, ...] = (), most: int = 1) -> Call:
    """The call with one of its operands, or all of them, otherwise: by up to `most` alterations, of these kinds or of
    all; operands that are trusted, or belong together, lie elsewhere, if nothing is said."""
    kinds = kinds or (("layout", "first") if trusts(call.target) or is_backward(call.target) else ALTERATIONS)
    for _ in range(order.randint(1, most) if most > 1 else 1):
        kind = order.choice(kinds)
        if kind == "number":
            call = _with_other_numbers(call, order)
        else:
            leaves, tree = tree_flatten((call.args, call.kwargs))
            args, kwargs = tree_unflatten(_ALTERATIONS[kind](list(leaves), order), tree)
            call = Call(call.target, args, kwargs)
    return call


def resized(call: Call, old: int, new: int) -> Call:
    """The call with row-major operands, in which `new` stands for every size and number that is `old`."""
    leaves, tree = tree_flatten((call.args, call.kwargs))
    for at in _tensors(leaves):
        for dim in [dim for dim, size in enumerate(leaves[at].shape) if size == old]:
            leaves[at] = _resized(leaves[at], dim, new)
        leaves[at] = leaves[at].contiguous()
    args, kwargs = tree_unflatten([new if type(leaf) is int and leaf == old else leaf for leaf in leaves], tree)
    return Call(call.target, args, kwargs)


def trusts(target: str) -> bool:
    """Whether operands of other sizes may end the process."""
    return target.split(".")[1] in TRUSTING


def is_backward(target: str) -> bool:
    """Whether autograd alone calls it, with operands that belong together."""
    return "backward" in target


def one_step_away(call: Call) -> dict[str, list[Callable[[], Call]]]:
    """How to make the calls with one dimension of one operand of another size, with one operand of another rank, and
    with all operands, or those of floats, or one of them, in another dtype; none of operators whose operands belong
    together."""
    leaves, tree = tree_flatten((call.args, call.kwargs))
    places = [] if trusts(call.target) or is_backward(call.target) else _tensors(leaves)[:_OPERANDS]

    def step(make: Callable[[torch.Tensor], torch.Tensor], *places: int) -> Callable[[], Call]:
        def made() -> Call:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # imaginary parts are lost
                changed = [make(leaf) if at in places else leaf for at, leaf in enumerate(leaves)]
            return Call(call.target, *tree_unflatten(changed, tree))

        return made

    floats = [at for at in places if leaves[at].is_floating_point()] or places
    sizes = [(at, dim, size) for at in places for dim, size in enumerate(leaves[at].shape)]
    return {
        "size": [
            step(partial(_resized, dim=dim, size=new), at)
            for at, dim, size in sizes
            for new in {0, 1, max(size - 1, 0), size + 1} - {size}
        ],
        "rank": [step(lambda x: x[None], at) for at in places]
        + [step(lambda x: x[0], at) for at in places if leaves[at].dim() and len(leaves[at])],
        "dtype": [
            step(partial(torch.Tensor.to, dtype=dtype), *places)
            for dtype in DTYPES
            for places in {tuple(floats), *((at,) for at in floats)} - {()}
        ],
    }


def _tensors(leaves: list[Any]) -> list[int]:
    return [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]


def _some(leaves: list[Any], order: random.Random) -> list[int]:
    """The places of one tensor, or of all."""
    places = _tensors(leaves)
    return places if order.random() < 0.5 else [order.choice(places)] if places else []


def _layout(leaves: list[Any], order: random.Random) -> list[Any]:
    """Tensors of one shape lie in memory each in its own way, or all in the same."""
    seed = order.random() if order.random() < 0.5 else None
    for at in _some(leaves, order):
        leaves[at] = laid_out(leaves[at], order if seed is None else random.Random(seed))
    return leaves


def laid_out(tensor: torch.Tensor, order: random.Random) -> torch.Tensor:
    """The same elements at other places: every second one of a longer row, columns first, channels last, behind others,
    repeated."""
    kind, axes = order.choice(("steps", "behind", "axes", "channels", "repeated")), list(range(tensor.dim()))
    if kind == "steps":
        return torch.stack([tensor, tensor], -1)[..., 1]
    if kind == "behind":
        gap = order.choice((1, 3))
        return torch.cat([tensor.new_zeros(gap), tensor.flatten()])[gap:].view(tensor.shape)
    if kind == "repeated" and tensor.numel() and axes:
        dim = order.choice(axes)
        return tensor.narrow(dim, 0, 1).expand(tensor.shape)
    order.shuffle(axes)
    if kind == "channels" and len(axes) > 3:
        axes = [0, *range(2, len(axes)), 1]
    return tensor.permute(axes).contiguous().permute([axes.index(dim) for dim in range(tensor.dim())])


def in_steps(call: Call) -> Call:
    """The same elements, of which none lie together: eager's kernels compute them one by one, not in vectors."""
    args, kwargs = tree_map(
        lambda x: torch.stack([x, x], -1)[..., 1] if isinstance(x, torch.Tensor) else x, (call.args, call.kwargs)
    )
    return Call(call.target, args, kwargs)


def _dtype(leaves: list[Any], order: random.Random) -> list[Any]:
    places, dtype = _some(leaves, order), order.choice(DTYPES)
    floats = [at for at in places if leaves[at].is_floating_point()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # imaginary parts are lost
        for at in floats or places:
            leaves[at] = leaves[at].to(dtype)
    return leaves


def _size(leaves: list[Any], order: random.Random) -> list[Any]:
    """Every dimension of one size is of another size, in one tensor or in all, and numbers that are equal to it too."""
    places = _some(leaves, order)
    return _of_another_size(leaves, places, order, len(places) == len(_tensors(leaves)) and order.random() < 0.7)


def _together(leaves: list[Any], order: random.Random) -> list[Any]:
    """In all tensors, and numbers."""
    return _of_another_size(leaves, _tensors(leaves), order, True)


def _of_another_size(leaves: list[Any], places: list[int], order: random.Random, numbers: bool) -> list[Any]:
    sizes = sorted({size for at in places for size in leaves[at].shape})
    if not sizes:
        return leaves
    if not numbers and order.random() < 0.3:  # one dimension of one tensor
        at = order.choice([at for at in places if leaves[at].dim()])
        dim = order.randrange(leaves[at].dim())
        leaves[at] = _resized(leaves[at], dim, order.choice((0, 1, 3 * leaves[at].shape[dim] + 1)))
        return leaves
    old = order.choice(sizes)
    new = order.choice((0, 1, old + 1, max(old - 1, 0)))
    for at in places:
        for dim in [dim for dim, size in enumerate(leaves[at].shape) if size == old]:
            leaves[at] = _resized(leaves[at], dim, new)
    return [new if numbers and type(leaf) is int and leaf == old else leaf for leaf in leaves]


def _resized(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    if not tensor.shape[dim]:
        return tensor.new_ones(*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])
    return tensor.index_select(dim, torch.arange(size) % tensor.shape[dim])


def _rank(leaves: list[Any], order: random.Random) -> list[Any]:
    for at in _some(leaves, order):
        dims = leaves[at].dim()
        grows = order.random() < 0.5
        leaves[at] = leaves[at][None] if grows or not dims or not leaves[at].shape[0] else leaves[at][0]
    return leaves


def _with_other_numbers(call: Call, order: random.Random) -> Call:
    """Of one or two arguments, of those that have a default value and were left out too."""
    arguments = resolve(call.target)._schema.arguments  # type: ignore[attr-defined]
    positional = [argument for argument in arguments if not argument.kwarg_only]
    args = [*call.args, *(argument.default_value for argument in positional[len(call.args) :])]
    kwargs = dict(call.kwargs)
    named = {argument.name: at for at, argument in enumerate(positional)}
    usable = [a for a in arguments if a.name not in FIXED and (not a.kwarg_only or a.name in kwargs)]
    for argument in order.sample(usable, min(len(usable), order.choice((1, 1, 2, 3)))):
        holder, key = (kwargs, argument.name) if argument.kwarg_only else (args, named[argument.name])
        values, tree = tree_flatten(holder[key])  # type: ignore[index]
        if values:
            at = order.randrange(len(values))
            values[at] = _other(values[at], argument, order)
            holder[key] = tree_unflatten(values, tree)  # type: ignore[index]
    return Call(call.target, tuple(args), kwargs)


def _other(value: Any, argument: Any, order: random.Random) -> Any:
    if argument.name == "dtype":
        return order.choice(DTYPES)
    if argument.name == "reduction":
        return order.randrange(3)
    match value:
        case bool():
            return not value
        case int():
            return order.choice((value + 1, value - 1, -value, 0, 1, 2, 3, -1, -2))
        case float():
            return order.choice((0.0, 0.5, 1.0, -1.0, 2.0, 2 * value, math.inf, math.nan))
        case str():
            return order.choice(("none", "mean", "sum", "prod", "amax", "amin", "tanh", "floor", "trunc"))
        case torch.dtype():
            return order.choice(DTYPES)
        case None:
            return _OPTIONAL.get(str(argument.type), lambda _: None)(order)
    return value


_OPTIONAL: dict[str, Callable[[random.Random], Any]] = {
    "Optional[int]": lambda order: order.choice((0, 1, 2, -1)),
    "Optional[float]": lambda order: order.choice((0.25, 1.0, 2.0)),
    "Optional[number]": lambda order: order.choice((0, 1, 2.0, 0.5)),
    "Optional[str]": lambda order: order.choice(("floor", "trunc")),
    "Optional[List[int]]": lambda order: order.choice(([0], [-1], [0, 1], [])),
}


def _floats(leaves: list[Any], order: random.Random) -> list[Any]:
    """All floating-point tensors of one other dtype."""
    dtype = order.choice(FLOATS)
    return [x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in leaves]


def _values(leaves: list[Any], order: random.Random) -> list[Any]:
    kind = order.choice(("grid", "grid", "hostile", "large"))
    for at in _some(leaves, order):
        if leaves[at].is_floating_point():
            leaves[at] = _VALUES[kind](leaves[at], order)
    return leaves


def _first(leaves: list[Any], _: random.Random) -> list[Any]:
    """The first tensor on a grid, which is a gradient, where others belong together."""
    at = _tensors(leaves)[0]
    leaves[at] = _grid(leaves[at], _) if leaves[at].is_floating_point() else leaves[at]
    return leaves


def _grid(tensor: torch.Tensor, _: random.Random) -> torch.Tensor:
    """Where ties and zeros are."""
    return (tensor * 2).round() / 2


def _hostile(tensor: torch.Tensor, order: random.Random) -> torch.Tensor:
    flat = tensor.flatten().clone()
    places = torch.randperm(flat.numel(), generator=torch.Generator().manual_seed(order.randrange(1 << 30)))
    flat[places[: len(HOSTILE)]] = torch.tensor(HOSTILE, dtype=tensor.dtype)[: flat.numel()]
    return flat.view(tensor.shape)


def _magnitudes(leaves: list[Any], order: random.Random) -> list[Any]:
    """Floating-point numbers of many magnitudes."""
    for at in _some(leaves, order):
        if leaves[at].is_floating_point():
            generator = torch.Generator().manual_seed(order.randrange(1 << 30))
            powers = torch.randint(-4, 9, leaves[at].shape, generator=generator)
            leaves[at] = leaves[at] * 2.0 ** powers.to(leaves[at].dtype)
    return leaves


_VALUES: dict[str, Callable[[torch.Tensor, random.Random], torch.Tensor]] = {
    "grid": _grid,
    "hostile": _hostile,
    "large": lambda tensor, _: tensor * 37.0,
}
_ALTERATIONS: dict[str, Callable[[list[Any], random.Random], list[Any]]] = {
    "layout": _layout,
    "dtype": _dtype,
    "size": _size,
    "rank": _rank,
    "values": _values,
    "magnitudes": _magnitudes,
    "floats": _floats,
    "first": _first,
    "together": _together,
}
ALTERATIONS = ("layout", "dtype", "size", "rank", "number", "values")
