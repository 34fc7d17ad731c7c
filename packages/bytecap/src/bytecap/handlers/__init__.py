"""What each known callable means: tables from the real object to a function on values.

A handler takes `(tracer, *args, **kwargs)` of Values and returns a Value. `PURE` lists callables that are simply
called at capture time when all their arguments are real objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytecap.handlers.builtin import BUILTIN
from bytecap.handlers.checked_functions import CHECKED_FUNCTIONS
from bytecap.handlers.classes import CLASSES
from bytecap.handlers.deep_copies import DEEP_COPIES
from bytecap.handlers.distributions import DISTRIBUTIONS
from bytecap.handlers.index_mode import INDEX_MODE
from bytecap.handlers.inspection import INSPECTION
from bytecap.handlers.iterators import ITERATORS
from bytecap.handlers.kernel_choices import KERNEL_CHOICES
from bytecap.handlers.known_contents import KNOWN_CONTENTS
from bytecap.handlers.legacy import LEGACY
from bytecap.handlers.library import LIBRARY
from bytecap.handlers.numpy_calls import NUMPY_CALLS
from bytecap.handlers.optimizers import OPTIMIZERS
from bytecap.handlers.parameters import PARAMETERS
from bytecap.handlers.pure import PURE, PURE_MODULES
from bytecap.handlers.regions import REGIONS
from bytecap.handlers.torch_functions import TORCH_FUNCTIONS
from bytecap.handlers.torch_state import TORCH_STATE
from bytecap.transforms import TRANSFORMS
from bytecap.values.inference import INFERENCE
from bytecap.values.tensor_hooks import TENSOR_HOOKS

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
