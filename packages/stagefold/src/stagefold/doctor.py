"""What a machine has for stagefold, and what is missing."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable

from stagewire.capabilities import Capability
from stagewire.errors import StageError

PACKAGES = ("stagewire", "absint", "bytecap", "aotgrad", "primops", "loopir", "codegen")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report; an optional thing may be missing without harm."""

    what: str
    good: bool
    detail: str
    optional: bool = False


def findings() -> tuple[Finding, ...]:
    """Python, torch, the packages, the frame hook, the C++ compiler, the instruction set, Triton, and names of torch
    that are missing."""
    from codegen import find_compiler, host_isa

    return (
        Finding("python", True, platform.python_version()),
        _version("torch"),
        *(_importable(name) for name in PACKAGES),
        _owner_of_codegen(),
        _importable("bytecap._evalframe"),
        _asked("C++ compiler", find_compiler),
        _asked("instruction set", host_isa),
        _version("triton", optional=True),
        *missing_names(),
    )


def missing_names() -> tuple[Finding, ...]:
    """What this release of torch lacks of what the packages ask for beyond its documented interface."""
    return tuple(
        Finding(
            one.path, False, f"not in this torch, or of another kind; {package} has no {one.use}: {one.without}", True
        )
        for package in (*PACKAGES, "stagefold")
        for one in _lacking(package)
    )


def _lacking(package: str) -> tuple[Capability, ...]:
    if importlib.util.find_spec(package) is None or importlib.util.find_spec(f"{package}.torch_capabilities") is None:
        return ()
    module = importlib.import_module(f"{package}.torch_capabilities")
    more = module.foreign().lacking() if hasattr(module, "foreign") else ()
    return (*module.TORCH.lacking(), *more)


def _version(name: str, optional: bool = False) -> Finding:
    try:
        return Finding(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "not installed" + (" (only needed for GPUs)" if optional else ""), optional)


def _importable(name: str) -> Finding:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        return Finding(name, False, str(error))
    return Finding(name, True, getattr(module, "__file__", None) or "built in")


def _owner_of_codegen() -> Finding:
    """An unrelated distribution also installs a top-level module named codegen."""
    owners = importlib.metadata.packages_distributions().get("codegen", [])
    foreign = sorted({owner for owner in owners if owner != "stagefold-codegen"})
    if foreign:
        return Finding("codegen owner", False, f"{', '.join(foreign)} installs a module of this name: uninstall it")
    return Finding("codegen owner", True, "stagefold-codegen" if owners else "a source tree")


def _asked(what: str, ask: Callable[[], object]) -> Finding:
    try:
        return Finding(what, True, str(ask()))
    except StageError as error:
        return Finding(what, False, f"{error.message}; {error.fix}")
