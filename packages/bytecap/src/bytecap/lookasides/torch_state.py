"""torch functions about the state of torch rather than about tensors: modes, checks, seeds, choices of kernels."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.nn.functional import scaled_dot_product_attention

from absint.forms.attention import KERNELS_OF_ATTENTION
from bytecap.context_types import Tracer
from bytecap.errors import DataDependent, UnsupportedCall
from bytecap.hook import directives
from bytecap.lookasides.torch_functions import leaves_of
from bytecap.nodes.autograd_functions import apply_function
from bytecap.nodes.call_arguments import current_gpu
from bytecap.nodes.gradients import autograd_grad
from bytecap.nodes.torch_calls import call_torch
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import NONE, Constant, Value, fold, run
from bytecap.objects.containers.sequences import ListValue
from bytecap.objects.numbers.symbolic import DataCondition
from bytecap.semantics.constant_folding import fold_call
from bytecap.semantics.effects import CallEffect, SeedEffect
from bytecap.semantics.operations import compare
from bytecap.torch_capabilities import SETTINGS, TORCH


def _entering(enter: Callable[..., Any], result: Callable[[Value], Value]) -> Callable[..., Value]:
    def handler(tracer: Tracer, region: Value) -> Value:
        tracer.regions.append((enter, region))
        return result(region)

    return handler


def _leaving(enter: Callable[..., Any], leave: Callable[..., Any]) -> Callable[..., Value]:
    def handler(tracer: Tracer, region: Value, *raised: Value) -> Value:
        if (enter, region) in tracer.regions:
            tracer.regions.remove((enter, region))
        else:
            tracer.effects.append(CallEffect(leave, [region, *raised], {}))
        return NONE

    return handler


def enter_open_regions(tracer: Tracer) -> None:
    """The capture ends: what is entered and not left is entered for real."""
    for enter, region in tracer.regions:
        tracer.effects.append(CallEffect(enter, [region], {}))


def enter_settings(settings: Any) -> Any:
    """torch._dynamo.decorators.DynamoConfigPatchProxy.__enter__: settings of torch's own capture, none of ours."""
    return settings.__enter__()


def leave_settings(settings: Any, *raised: Any) -> Any:
    """The same for `__exit__`."""
    return settings.__exit__(*raised)


REGIONS: dict[Any, Callable[..., Value]] = {
    record_function.__enter__: _entering(record_function.__enter__, lambda region: region),
    record_function.__exit__: _leaving(record_function.__enter__, record_function.__exit__),
    enter_settings: _entering(enter_settings, lambda settings: NONE),
    leave_settings: _leaving(enter_settings, leave_settings),
}
"""Context managers that do nothing to what is captured inside."""
# What torch says of a check without a message.
_UNEXPLAINED = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
    "enhancement request to PyTorch.)"
)


def _always(value: Any) -> Callable[..., Value]:
    return lambda tracer, *args, **kwargs: Constant(value)


def _grad_mode(tracer: Tracer, enabled: Value) -> Value:
    """Change the grad mode for what follows, in the evaluator and as a node."""
    wanted = bool(enabled.concrete())
    if wanted != torch.is_grad_enabled():
        if wanted and tracer.graph.inference.is_on:
            raise UnsupportedCall("torch.enable_grad in torch.inference_mode")
        TORCH.set_grad_enabled(wanted)
        tracer.graph.add_node("torch._C._set_grad_enabled", (wanted,), {}, [], tracer.line())
    return NONE


def _live(function: Callable[..., Any]) -> Callable[..., Value]:
    """Read a part of torch's state that the global-state guard covers, or that the machine and torch's build decide."""
    return lambda tracer, *args: fold(tracer, function, tuple(arg.concrete() for arg in args))


def _autocast_dtype(tracer: Tracer, device: Value) -> Value:
    """Covered by the global-state guard where autocast is on."""
    name = device.concrete()
    dtype = torch.get_autocast_dtype(name)
    if not torch.is_autocast_enabled(name):
        tracer.guards.reading(torch.get_autocast_dtype, (name,), dtype)
    return tracer.objects.fresh(dtype)


def _set_anomaly(tracer: Tracer, enabled: Value, check_nan: Value = Constant(True)) -> Value:  # noqa: B008
    """Setting it to what it is; anything else belongs to plain code."""
    found = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    tracer.guards.reading(torch.is_anomaly_enabled, (), found[0])
    tracer.guards.reading(torch.is_anomaly_check_nan_enabled, (), found[1])
    wanted = bool(enabled.concrete()), bool(check_nan.concrete())
    if wanted != found and (wanted[0] or found[0]):
        raise UnsupportedCall("torch.set_anomaly_enabled in captured code")
    return NONE


def _check(
    tracer: Tracer, condition: Value, message: Value | None = None, *, error: type[Exception] = RuntimeError
) -> Value:
    if isinstance(condition, TensorValue):
        raise UnsupportedCall("torch._check on a tensor")
    if isinstance(condition, DataCondition) and tracer.checks.assume(tracer, condition, True):
        return NONE
    if not condition.truth(tracer):
        text = _UNEXPLAINED if message is None or message.is_none() else message.call(tracer, [], {}).concrete()
        raise tracer.raises(error, text)
    return NONE


def _check_tensor_all(tracer: Tracer, condition: Value, message: Value | None = None) -> Value:
    """Every element is true: the graph checks it, and where it does not hold the function runs plain, and raises."""
    if not isinstance(condition, TensorValue) or condition.abstract.dtype is not torch.bool:
        raise UnsupportedCall("torch._check_tensor_all of something else than a tensor of bools")
    holds = call_torch(tracer, torch.Tensor.all, [condition], {})
    try:
        known = holds.truth(tracer)
    except DataDependent:
        known = tracer.checks.assume(tracer, holds, True)
        if not known:
            raise
    if not known:
        raise UnsupportedCall("torch._check_tensor_all that fails")
    return NONE


def _check_is_size(tracer: Tracer, number: Value, message: Value | None = None, *, max: Value | None = None) -> Value:
    _check(tracer, compare(tracer, ">=", number, Constant(0)), message)
    return NONE if max is None else _check(tracer, compare(tracer, "<=", number, max), message)


def _seed(
    function: Callable[[int], Any], result: Callable[[Tracer], Value] = lambda tracer: NONE
) -> Callable[..., Value]:
    """Seeds random streams in front of the graph: what draws from them stands behind it."""

    def handler(tracer: Tracer, seed: Value) -> Value:
        number = run(tracer, int, (seed.concrete(),))
        run(tracer, torch.Generator().manual_seed, (number,))
        if tracer.mode.may_draw or tracer.graph.is_body:
            what = f"{function.__module__}.{function.__name__}() behind what draws random numbers"
            raise UnsupportedCall(what, fix="Seed at the start of the function.")
        tracer.effects.append(SeedEffect(function, [Constant(number)], {}))
        return result(tracer)

    return handler


def _break(what: str) -> Callable[..., Value]:
    def refuse(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        raise UnsupportedCall(what)

    return refuse


_CAPTURED = frozenset(
    {"functional_call", "grad", "grad_and_value", "vmap", "jvp", "vjp", "jacrev", "jacfwd", "hessian",
     "stack_module_state"}
)  # fmt: skip


def _exchange_gpu(tracer: Tracer, index: Value) -> Value:
    """`with torch.cuda.device(index)`, of the GPU that is current already or of none (-1)."""
    wanted = max(index.concrete(), -1)
    if wanted >= 0 and wanted != current_gpu(tracer).index:
        raise UnsupportedCall("another current GPU in captured code")
    return Constant(wanted)


TORCH_STATE: dict[Any, Callable[..., Value]] = {
    TORCH.exchange_gpu: _exchange_gpu,
    TORCH.maybe_exchange_gpu: _exchange_gpu,
    **dict.fromkeys((directives.is_compiling, torch.compiler.is_dynamo_compiling), _always(True)),
    **dict.fromkeys(
        (torch.compiler.is_exporting, torch.jit.is_scripting, torch.jit.is_tracing, TORCH.has_transforms),
        _always(False),
    ),
    **dict.fromkeys((TORCH.tracing_state, TORCH.log_use), _always(None)),
    # Not for torch's encoder: it would leave its fast path, whose results at padded places are zeros.
    torch.compiler.is_compiling: lambda tracer: Constant(tracer.frames.module() != "torch.nn.modules.transformer"),
    torch.compiler.cudagraph_mark_step_begin: _always(None),  # for recordings of torch's compiler
    TORCH.count_dispatch_modes: _always(0),  # a capture under a mode is refused; its own is not the program's
    **{
        function: _live(function)
        for function in (
            torch.is_grad_enabled,
            TORCH.is_grad_enabled,
            torch.is_autocast_enabled,
            torch.get_default_dtype,
            TORCH.default_device,
            TORCH.accelerator,
        )
    },
    TORCH.set_grad_enabled: _grad_mode,
    torch.get_autocast_dtype: _autocast_dtype,
    torch.is_tensor: lambda tracer, value: Constant(isinstance(value, TensorValue)),
    torch.set_anomaly_enabled: _set_anomaly,
    TORCH.check: _check,
    TORCH.check_index: partial(_check, error=IndexError),
    TORCH.check_is_size: _check_is_size,
    TORCH.check_not_implemented: partial(_check, error=NotImplementedError),
    TORCH.check_tensor_all: _check_tensor_all,
    TORCH.check_tensor_all_with: lambda tracer, error, *given, **named: _check_tensor_all(tracer, *given, **named),
    TORCH.check_type: partial(_check, error=TypeError),
    TORCH.check_value: partial(_check, error=ValueError),
    torch.device: lambda tracer, *args, **kwargs: fold_call(tracer, torch.device, list(args), kwargs),
    torch.manual_seed: _seed(torch.manual_seed, lambda tracer: tracer.objects.wrap(torch.default_generator, None)),
    torch.cuda.manual_seed: _seed(torch.cuda.manual_seed),
    torch.cuda.manual_seed_all: _seed(torch.cuda.manual_seed_all),
    torch.save: _break("torch.save in captured code"),
    torch.autograd.backward: _break("torch.autograd.backward in captured code"),
    torch.autograd.grad: autograd_grad,
    TORCH.apply_function: apply_function,
} | {
    function: _break(f"torch.func.{name} in captured code")
    for name, function in vars(torch.func).items()
    if isinstance(function, types.FunctionType) and name not in _CAPTURED
}


# -- The one torch function mode that captured code may enter: indices that are tensors stay tensors (`x[i, j]`).
#
# Masks of attention are written as functions of places, `mask(batch, head, query, key)`, and mapped over the places by
# torch.vmap, which cannot look into an index. torch ships a mode for it, `TransformGetItemToIndex`: a subscript whose
# parts are all tensors or ints is `aten.index`, with the ints as tensors.

_MODE = ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")
_PUSH, _POP = TORCH.push_function_mode, TORCH.pop_function_mode


def _enter_mode(tracer: Tracer, mode: Value) -> Value:
    cls = mode.python_type()
    if (cls.__module__, cls.__qualname__) != _MODE:
        raise UnsupportedCall(f"entering the torch function mode {cls.__qualname__} in captured code")
    tracer.index_modes.append(mode)
    return Constant(None)


def _leave_mode(tracer: Tracer) -> Value:
    if not tracer.index_modes:
        raise UnsupportedCall("leaving a torch function mode that was entered outside")
    return tracer.index_modes.pop()


def index_by_tensors(tracer: Tracer, tensor: Value, key: Value) -> Value | None:
    """`tensor[key]` inside of the mode; None outside, and for a key that it leaves alone."""
    if not tracer.index_modes:
        return None
    parts = list(leaves_of(tracer, key))
    others = [part for part in parts if not isinstance(part, TensorValue)]
    if not all(isinstance(part, Constant) and issubclass(part.python_type(), int) for part in others):
        return None
    options = {"dtype": Constant(torch.int64), "device": tensor.get_attribute(tracer, "device")}
    places = [
        part if isinstance(part, TensorValue) else call_torch(tracer, torch.tensor, [part], dict(options))
        for part in parts
    ]
    return call_torch(tracer, torch.ops.aten.index.Tensor, [tensor, ListValue(places)], {})


INDEX_MODE: dict[Any, Callable[..., Value]] = {_PUSH: _enter_mode, _POP: _leave_mode}


# -- Settings of torch that choose between kernels of one meaning: which attention, whether cuDNN or oneDNN.
#
# They change nothing that a graph says, but which kernels a call of attention may be: captured code keeps books of
# them. It reads what it wrote, and what it leaves changed is set when the graph has run. A setting that changes numbers
# (TF32, precision) may only be set to what it is; anything else ends the graph.


@dataclass(frozen=True)
class Setting:
    """setter(*place, value), getter(*place) -> value; places: how many arguments say which one."""

    setter: Callable[..., Any]
    getter: Callable[..., Any]
    changes_numbers: bool
    places: int

    def read(self, tracer: Tracer, *place: Value) -> Value:
        """What the code wrote, else what is set."""
        key = self._key(place)
        if key in tracer.settings:
            return Constant(tracer.settings[key][1])
        return Constant(self._now(tracer, key))

    def write(self, tracer: Tracer, *args: Value) -> Value:
        """Note the value."""
        key = self._key(args[: self.places])
        value = args[self.places].concrete()
        before = tracer.settings[key][0] if key in tracer.settings else self._now(tracer, key)
        if self.changes_numbers and value != before:
            raise UnsupportedCall(f"torch._C.{self.setter.__name__} in captured code")
        tracer.settings[key] = before, value
        return Constant(None)

    def _key(self, place: tuple[Value, ...]) -> tuple[Any, ...]:
        return (self, *[value.concrete() for value in place])

    def _now(self, tracer: Tracer, key: tuple[Any, ...]) -> Any:
        value = self.getter(*key[1:])
        tracer.guards.reading(self.getter, key[1:], value)
        return value


def apply_settings(tracer: Tracer) -> None:
    """The capture ends: what is changed is set for real, and such modes as it is inside of are entered."""
    for (setting, *place), (before, value) in tracer.settings.items():
        if value != before:
            tracer.effects.append(CallEffect(setting.setter, [Constant(part) for part in (*place, value)], {}))
    tracer.effects.extend([CallEffect(_PUSH, [mode], {}) for mode in tracer.index_modes])


_ALL = {
    setter: Setting(getattr(TORCH, setter), getattr(TORCH, getter), numbers, places)
    for setter, getter, numbers, places in SETTINGS
    if TORCH.has(setter) and TORCH.has(getter)
}


_OF_ATTENTION = {name: _ALL[f"_set_sdp_use_{name}"] for name in KERNELS_OF_ATTENTION if f"_set_sdp_use_{name}" in _ALL}


def _attention(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    """Of the kernels that may be taken: those of now, or those that the code has set. Results lie in memory as that of
    one of them does."""
    may_be_taken = [name for name, setting in _OF_ATTENTION.items() if setting.read(tracer).concrete()]
    noted = [tracer.settings[(setting,)] for setting in _OF_ATTENTION.values() if (setting,) in tracer.settings]
    given = dict(_DEFAULTS) | dict(zip(_DEFAULTS, args, strict=False)) | kwargs
    is_changed = any(before != now for before, now in noted)
    if not is_changed or len(args) > _POSITIONAL or given.keys() != _DEFAULTS.keys() or None in given.values():
        return call_torch(tracer, scaled_dot_product_attention, list(args), kwargs)
    kernels = ListValue([Constant(name) for name in may_be_taken])
    return call_torch(tracer, torch.ops.stagefold.scaled_dot_product_attention, [*given.values(), kernels], {})


_POSITIONAL = 6
_DEFAULTS: dict[str, Value | None] = {
    "query": None, "key": None, "value": None, "attn_mask": NONE, "dropout_p": Constant(0.0),
    "is_causal": Constant(False), "scale": NONE, "enable_gqa": Constant(False),
}  # fmt: skip
"""The arguments of `scaled_dot_product_attention`; None for those that have to be given."""

KERNEL_CHOICES: dict[Any, Callable[..., Value]] = {
    **{setting.setter: setting.write for setting in _ALL.values()},
    **{setting.getter: setting.read for setting in _ALL.values()},
    scaled_dot_product_attention: _attention,
}
