"""Regions of the profiler: invisible in captured code, and real where the code around a break is in one.

region ::= enter ... leave        both in one capture: nothing
         | enter ... break        entered when the graph has run, left by the plain code or a later capture
         | leave                  of one that was entered before
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.autograd.profiler import record_function

from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.semantics.effects import CallEffect

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer


def _enter(tracer: Tracer, region: Value) -> Value:
    tracer.regions.append(region)
    return region


def _leave(tracer: Tracer, region: Value, *raised: Value) -> Value:
    if region in tracer.regions:
        tracer.regions.remove(region)
    else:
        tracer.effects.append(CallEffect(record_function.__exit__, [region, *raised], {}))
    return Constant(None)


def enter_open_regions(tracer: Tracer) -> None:
    """The capture ends: what is entered and not left is entered for real."""
    for region in tracer.regions:
        tracer.effects.append(CallEffect(record_function.__enter__, [region], {}))


REGIONS: dict[Any, Callable[..., Value]] = {record_function.__enter__: _enter, record_function.__exit__: _leave}
