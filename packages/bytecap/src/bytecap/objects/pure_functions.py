"""Callables without side effects whose result depends on their arguments alone."""

from __future__ import annotations

import base64
import builtins
import collections
import dataclasses
import datetime
import decimal
import importlib.util
import inspect
import json
import os
import re
import sys
import typing
from typing import Any

import torch

from bytecap.torch_capabilities import TORCH

# Whole modules of such functions (top-level name, or the full dotted name).
PURE_MODULES = frozenset(
    {"math", "cmath", "_operator", "operator", "inspect", "typing", "re", "string", "textwrap", "fractions",
     "statistics", "types", "keyword", "packaging", "numbers", "_struct", "struct", "unicodedata", "colorsys",
     "sre_compile", "ast", "typing_extensions", "posixpath", "genericpath", "decimal", "binascii"}
)  # fmt: skip

_BUILTINS = (
    "abs", "ascii", "bin", "bool", "bytes", "chr", "complex", "divmod", "float", "format", "frozenset", "hash",
    "hex", "int", "oct", "ord", "pow", "repr", "round", "str", "range",
)  # fmt: skip

PURE: frozenset[Any] = frozenset(getattr(builtins, name) for name in _BUILTINS) | frozenset(
    {
        dataclasses.is_dataclass, dataclasses.fields, inspect.signature, importlib.util.find_spec, re.compile,
        typing.get_type_hints, typing.get_origin, typing.get_args, collections.Counter,
        str.maketrans, bytes.maketrans, sys.intern, json.dumps, json.loads, base64.b64encode, base64.b64decode,
        datetime.timedelta, datetime.date, datetime.datetime, datetime.time,
        torch.finfo, torch.iinfo, torch.device, torch.Size, torch.get_default_dtype, torch.is_storage,
        torch.promote_types, torch.can_cast, torch.cuda.is_available, torch.backends.mps.is_available,
        torch.typename, os.fspath,
        torch.cuda.device_count, torch.cuda.is_bf16_supported, torch.cuda.get_device_capability,
        torch.cuda.get_device_name, TORCH.tracing_state, TORCH.log_use,
        TORCH.cudnn_enabled,
    }
)  # fmt: skip

_ELSEWHERE = frozenset(
    {datetime.datetime.now, datetime.datetime.today, datetime.datetime.utcnow, datetime.date.today,
     decimal.getcontext, decimal.setcontext, decimal.localcontext, inspect.currentframe, inspect.stack, inspect.trace}
) | frozenset(
    getattr(os.path, name)
    for name in (
        "exists", "lexists", "isfile", "isdir", "islink", "ismount", "getsize", "getmtime", "getatime", "getctime",
        "samefile", "sameopenfile", "abspath", "realpath", "relpath", "expanduser", "expandvars",
    )
)  # fmt: skip
"""Of the modules above, but they read files, clocks, frames, or what belongs to the process."""

_OF_CLASSES = frozenset({"inspect", "typing", "typing_extensions", "types", "dataclasses"})
_OF_ANY_OBJECT = frozenset({torch.is_storage, torch.typename})


def looks_elsewhere(function: Any) -> bool:
    """Whether the result depends on more than the arguments and the code."""
    try:
        return function in _ELSEWHERE
    except TypeError:
        return False


def looks_at_classes_alone(function: Any) -> bool:
    """Whether a pure callable reads nothing of an object but its class (and what classes and functions hold)."""
    return getattr(function, "__module__", None) in _OF_CLASSES or function in _OF_ANY_OBJECT


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
