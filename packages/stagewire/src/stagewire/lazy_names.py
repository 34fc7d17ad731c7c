"""Names of a package whose modules are imported when somebody asks for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. names: by the module that defines them, separated by blanks.

    None may be called like a module of the package: after an import of that module it would be the module.

    >>> lazy_names("stagewire", {"stagewire.printer": "print_document"})("print_document").__module__
    'stagewire.printer'
    """
    modules = {name: module for module, row in names.items() for name in row.split()}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return find
