"""From a `Unit` (data) to a callable on tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from codegen.choices import Bound, Replay, load_in_groups
from codegen.errors import BadTarget
from codegen.targets import DEVICES, Executor, find
from stagewire.private_files import usable_directory
from stagewire.program import Unit

Loaded = Callable[..., tuple[Any, ...]]


@overload
def load(
    unit: Unit, cache_dir: str | Path | None = None, *, executor: Executor = "fast", replay: Sequence[Replay] = ()
) -> Loaded: ...
@overload
def load(
    unit: Sequence[Unit], cache_dir: str | Path | None = None, *, executor: Executor = "fast",
    replay: Sequence[Replay] = (),
) -> tuple[Loaded, ...]: ...  # fmt: skip
def load(
    unit: Unit | Sequence[Unit], cache_dir: str | Path | None = None, *, executor: Executor = "fast",
    replay: Sequence[Replay] = (),
) -> Loaded | tuple[Loaded, ...]:  # fmt: skip
    """Compile (or fetch from `cache_dir`) and bind; several units compile at the same time.

    The callable takes the unit's inputs in order and returns its outputs as a tuple. Given one list of them instead,
    it empties the list, and lets go of what only the list held as soon as it has read it; an empty list runs nothing,
    and gives back the memory that is kept for the next run. Without `cache_dir`, and where others can write there,
    machine code lives in a temporary directory that ends with the process. `executor`: "fast", or "reference" (one
    readable step per instruction). `replay`, one for each unit: record them as CUDA graphs, where `why_not_recorded`
    has nothing against it.
    """
    units = (unit,) if isinstance(unit, Unit) else tuple(unit)
    directory = usable_directory(cache_dir, "machine code")
    bound = _bound(units, directory, executor)
    if replay:
        from codegen.runtime.cuda_graphs import replayed

        again = lambda one: _bound((one,), directory, executor)[0].run  # noqa: E731
        loaded = tuple(replayed(*row, again) for row in zip(units, bound, replay, strict=True))
    else:
        loaded = tuple(one.run for one in bound)
    return loaded[0] if isinstance(unit, Unit) else loaded


def _bound(units: Sequence[Unit], directory: Path, executor: Executor) -> tuple[Bound, ...]:
    """The units in order, those of each target loaded together."""
    return load_in_groups(units, lambda one: one.target, lambda target, own: _loaded(target, own, directory, executor))


def _loaded(target: str, units: Sequence[Unit], directory: Path, executor: Executor) -> Sequence[Bound]:
    """What a target makes of its units; an error of its loader gets a note that names it."""
    try:
        loaded = find(target).load(units, directory, executor)
    except Exception as error:
        error.add_note(f"in load() of the target {target!r}")
        raise
    if not isinstance(loaded, (tuple, list)) or len(loaded) != len(units):
        found = f"{len(loaded)} of them" if isinstance(loaded, (tuple, list)) else f"a {type(loaded).__name__}"
        raise BadTarget(f"load() of the target {target!r} returned {found} for {len(units)} units")
    wrong = [one for one in loaded if not isinstance(one, Bound)]
    if wrong:
        raise BadTarget(f"load() of the target {target!r} made a {type(wrong[0]).__name__} of a unit, not a Bound")
    return loaded


def run_functions(unit: Unit, functions: Mapping[str, Callable[..., None]]) -> Bound:
    """A unit that runs step by step, for targets whose kernels are Python functions, by name.

    A function takes a list of tensors and a tuple of ints, which a launch names as buffers and sizes. What it writes
    into the tensors is its result; what it raises is what the run raises.
    """
    from codegen.runtime.python_wrapper import PythonWrapper

    return Bound(PythonWrapper(unit, functions), lambda: unit)


def run_addresses(unit: Unit, addresses: Mapping[str, int], keep: object, directory: Path, executor: Executor) -> Bound:
    """A unit of the CPU that the native executor runs, for targets whose kernels are machine code, by name.

    addresses: of functions of the C interface (`codegen.targets`), which live as long as `keep` is referred to. Step by
    step, with a warning, where there is no C++ compiler for the executor.
    """
    from codegen.runtime.native import bind_addresses

    return bind_addresses(unit, addresses, keep, directory, executor)


def prepare(cache_dir: str | Path | None = None, device: str = "cuda") -> None:
    """Begin what loading a unit for a device waits for, while it is still being made."""
    find(device, DEVICES).prepare(usable_directory(cache_dir, "machine code"))


def why_not_recorded(unit: Unit) -> str | None:
    """Why `load` with `replay` would not record a unit as a CUDA graph; None where it would."""
    from codegen.runtime.recordable import obstacle

    return obstacle(unit)


def random_threads(cache_dir: str | Path | None = None) -> int:
    """How many threads ATen's random kernels have at most on the GPUs of this process, for programs that compute their
    numbers by formula; 0 where ATen has to draw: no GPU, several kinds, or kernels that draw other numbers.

    That is found out once for each version of torch and kind of device, and kept in `cache_dir`.
    """
    from codegen.runtime import philox

    return philox.random_threads(usable_directory(cache_dir, "machine code"))
