"""Settings of torch that choose between kernels of one meaning: which attention, whether cuDNN or oneDNN.

They change nothing that a graph says, so that captured code only keeps books of them: it reads what it wrote, and what
it leaves changed is set when the graph has run. A setting that changes numbers (TF32, precision) may only be set to
what it is; anything else ends the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.semantics.effects import CallEffect
from bytecap.torch_capabilities import SETTINGS, TORCH


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


def leave_settings(tracer: Tracer) -> None:
    """The capture ends: what is changed is set for real."""
    for (setting, *place), (before, value) in tracer.settings.items():
        if value != before:
            tracer.effects.append(CallEffect(setting.setter, [Constant(part) for part in (*place, value)], {}))


_ALL = [
    Setting(getattr(TORCH, setter), getattr(TORCH, getter), numbers, places)
    for setter, getter, numbers, places in SETTINGS
    if TORCH.has(setter) and TORCH.has(getter)
]
KERNEL_CHOICES: dict[Any, Callable[..., Value]] = {
    **{setting.setter: setting.write for setting in _ALL},
    **{setting.getter: setting.read for setting in _ALL},
}
