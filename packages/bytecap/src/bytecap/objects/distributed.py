"""Objects of torch.distributed that stay what they are: meshes and process groups, placements of DTensors.

A placement is guarded by value, a mesh or group by identity.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.base import Constant, RealValue, Value, fold, handler_of, run, state
from bytecap.objects.functions import BuiltinMethod

GROUP = "torch.distributed.distributed_c10d.ProcessGroup"
PLACEMENT = "torch.distributed.tensor.placement_types.Placement"
MEMBERS = {name: frozenset(members.split()) for name, members in {
    "torch.distributed.device_mesh.DeviceMesh": """_coordinate_on_dim _create_flatten_mesh _create_sub_mesh _device_type
        _dim_group_names _flatten _flatten_mapping _flatten_rank_map _get_mesh_dim_by_name _get_root_mesh _hash _layout
        _get_slice_mesh_layout _is_current_rank_part_of_mesh _mesh_dim_names _pg_registry _rank_map _root_mesh __eq__
        _sym_get_coordinate _thread_id _unflatten __getitem__ __ne__ device_type get_coordinate get_group get_local_rank
        get_rank mesh mesh_dim_names ndim shape size""",
    GROUP: "__eq__ __ne__ _get_backend_name group_desc group_name rank size",
    PLACEMENT: "__eq__ dim is_partial is_replicate is_shard reduce_op",
}.items()}  # fmt: skip
"""The classes, and the names of what is the same for as long as an object of each is there."""


def _class_name(cls: type) -> str:
    """Under which of these names a class, or one that it is derived from, is known; else ""."""
    if not str(cls.__module__).startswith("torch.distributed"):
        return ""
    if cls.__name__ == "ProcessGroup":  # what collectives are in a graph is defined there
        importlib.import_module("torch.distributed._functional_collectives")
    names = (f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__)
    return next((name for name in names if name in MEMBERS), "")


def is_constant_class(cls: type) -> bool:
    """Whether its instances are such objects."""
    return _class_name(cls) != ""


def is_value_class(cls: type) -> bool:
    """Whether instances that are equal are as good as one: placements."""
    return _class_name(cls) == PLACEMENT


def is_layout(cls: type) -> bool:
    """Whether its instances say how a DTensor is laid out: nobody changes one."""
    return (cls.__module__, cls.__name__) == ("torch.distributed.tensor._dtensor_spec", "DTensorSpec")


def is_shared(real: Any) -> bool:
    """Whether it is a mesh or group: it stands for connections, which one that is equal may not have."""
    return is_constant_class(type(real)) and not is_value_class(type(real))


class DistributedConstant(Constant):
    """One of them."""

    def describe(self) -> str:
        return type(self.value).__name__ if is_shared(self.value) else super().describe()

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "__class__":
            return super().get_attribute(tracer, name)
        if handler_of(getattr(type(self.value), name, None)) is not None:
            return BuiltinMethod(self, name)
        known = _class_name(type(self.value))
        if name not in MEMBERS[known]:
            if known == PLACEMENT:
                return super().get_attribute(tracer, name)
            raise UnsupportedCall(f"{name!r} of a {self.describe()}")
        found = run(tracer, getattr, (self.value, name))
        return BuiltinMethod(self, name) if callable(found) else tracer.objects.fresh(found)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        handler = handler_of(getattr(type(self.value), name, None))
        if handler is not None:
            return handler(tracer, self, *args, **kwargs)
        return super().call_method(tracer, name, args, kwargs)


class CollectiveOptions(RealValue):
    """The settings of a collective (AllreduceOptions): a real object, which the captured code has made for one call."""

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return fold(tracer, getattr, (self.real, name))

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        run(tracer, setattr, (self.real, name, value.concrete()))


class Work(Value):
    """A collective that is on its way. Until it is waited for it is among the side effects, which refuse it there.

    finish: writes what the graph receives to where it belongs. kind: torch's class of such objects.
    """

    finish: Callable[[], None]
    kind: type
    is_done: bool = state(default=False)

    def python_type(self) -> type:
        return self.kind

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return BuiltinMethod(self, name) if hasattr(self.kind, name) else super().get_attribute(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name != "wait":
            raise UnsupportedCall(f"method {name!r} of the work of a collective", fix="Call its wait().")
        if not self.is_done:
            self.is_done = True
            tracer.effects.remove(self)
            self.finish()
        return Constant(True)


def masks_of(tensor: Any) -> list[torch.Tensor]:
    """Of the result of a look-up in a table whose rows lie in several processes: which indices were not this process's.
    Torch notes that on a placement, until the sum over processes needs it."""
    return [mask.data for mask in map(_mask, getattr(tensor, "placements", ())) if mask is not None]


def give_own_masks(tensor: Any, *, end: bool) -> None:
    """Note them on placements of this tensor alone; torch's own are shared by all calls on such types. end: no longer
    on those."""
    if not masks_of(tensor):
        return
    placements = []
    for placement in tensor.placements:
        mask = _mask(placement)
        if mask is not None:
            placement = dataclasses.replace(placement, mask_buffer=copy.copy(mask))
            if end:
                mask.release_mask()
        placements.append(placement)
    tensor._spec = dataclasses.replace(tensor._spec, placements=tuple(placements))


def _mask(placement: Any) -> Any:
    mask = getattr(placement, "mask_buffer", None)
    return None if mask is None or mask.data is None else mask
