"""What each known callable means: tables from the real object to a function on values.

A handler takes `(tracer, *args, **kwargs)` of Values and returns a Value. `PURE` lists callables that are simply
called at capture time when all their arguments are real objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytecap.lookasides.argument_checks import CHECKED_FUNCTIONS
from bytecap.lookasides.builtin import BUILTIN
from bytecap.lookasides.classes import CLASSES
from bytecap.lookasides.content_sized_functions import KNOWN_CONTENTS
from bytecap.lookasides.deep_copies import DEEP_COPIES
from bytecap.lookasides.distributions import DISTRIBUTIONS
from bytecap.lookasides.index_mode import INDEX_MODE
from bytecap.lookasides.inspection import INSPECTION
from bytecap.lookasides.iterators import ITERATORS
from bytecap.lookasides.kernel_choices import KERNEL_CHOICES
from bytecap.lookasides.legacy import LEGACY
from bytecap.lookasides.library import LIBRARY
from bytecap.lookasides.numpy_calls import NUMPY_CALLS
from bytecap.lookasides.optimizers import OPTIMIZERS
from bytecap.lookasides.parameters import PARAMETERS
from bytecap.lookasides.pure import PURE, PURE_MODULES
from bytecap.lookasides.regions import REGIONS
from bytecap.lookasides.torch_functions import TORCH_FUNCTIONS
from bytecap.lookasides.torch_state import TORCH_STATE
from bytecap.nodes.transforms import TRANSFORMS
from bytecap.objects.inference import INFERENCE
from bytecap.objects.tensor_hooks import TENSOR_HOOKS

TABLES = (
    BUILTIN,
    CHECKED_FUNCTIONS,
    CLASSES,
    DEEP_COPIES,
    DISTRIBUTIONS,
    INDEX_MODE,
    INFERENCE,
    INSPECTION,
    ITERATORS,
    KERNEL_CHOICES,
    KNOWN_CONTENTS,
    LEGACY,
    LIBRARY,
    OPTIMIZERS,
    PARAMETERS,
    REGIONS,
    TENSOR_HOOKS,
    TORCH_STATE,
    TORCH_FUNCTIONS,
    TRANSFORMS,
    NUMPY_CALLS,
)
HANDLERS: dict[Any, Callable[..., Any]] = {real: meaning for table in TABLES for real, meaning in table.items()}


def handler_of(real: Any) -> Callable[..., Any] | None:
    """The table entry of a callable, or None."""
    try:
        return HANDLERS.get(real)
    except TypeError:
        return None


def is_pure(real: Any) -> bool:
    """Whether calling `real` at capture time, on real arguments, is sound."""
    try:
        if real in PURE:
            return True
    except TypeError:
        return False
    owner = getattr(real, "__self__", None)
    module = getattr(real, "__module__", None) or getattr(owner, "__name__", None) or ""
    if not isinstance(module, str):
        return False
    return module in PURE_MODULES or module.split(".")[0] in PURE_MODULES
