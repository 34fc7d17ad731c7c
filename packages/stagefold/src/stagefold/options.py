"""What a user may set: torch.compile's modes and options, and the options of each stage.

`options={"key": value}` takes the fields of `Options` by name, and any field of a stage's own Options object as
"stage.field", for example {"codegen.target": "triton"}.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import platformdirs

from codegen import Replay
from stagefold.errors import BadOption
from stagefold.eviction import Limits
from stagewire.private_files import CacheWarning, temporary_directory

SLOTS = ("aotgrad", "primops", "partition", "loopir", "codegen")

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "autotune": True},
    "max-autotune-no-cudagraphs": {"autotune": True},
}
"""Option bundles by name of mode."""


def default_cache_dir() -> Path:
    """STAGEFOLD_CACHE_DIR, or the platform's directory for caches of a user."""
    chosen = os.environ.get("STAGEFOLD_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        found = Path(platformdirs.user_cache_dir("stagefold"))
    except RuntimeError:
        found = Path("~")
    if found.is_absolute():
        return found
    instead = temporary_directory()  # neither HOME is set nor has the user an entry in the system's list
    message = f"stagefold finds no home directory: its cache is {instead}, until this process ends"
    warnings.warn(f"{message}; STAGEFOLD_CACHE_DIR names another", CacheWarning, stacklevel=2)
    return instead


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the pipeline itself.

    cache: read and write the on-disk cache.
    cache_dir: where it lies. Default: `default_cache_dir()`.
    cache_size: megabytes; what was used least recently beyond them is removed (looked at once an hour).
    cache_days: days; entries that were not used for so long are removed.
    trace_dir: a directory, in which each process records what it compiles in a file of its own (`stagefold.capsule`).
        Default: STAGEFOLD_TRACE, if set.
    verify: check every document at every boundary (slower). What stages, passes, partitioners and decompositions of
        your own make is checked without it.
    progress: one status line on stderr while compiling. Default: when stderr is a terminal.
    recompile_limit: versions of one code object, beyond which it runs plain.
    rng: "default" draws eager's random numbers, bit for bit on a CPU: through ATen, in program order, from the stream
        that `torch.manual_seed` sets; fusion and recomputation draw none. On a GPU, kernels compute the masks of
        dropout that ATen would draw ("primops.random_threads": 0 has ATen draw). One exception: a fused attention
        kernel draws the dropout of its weights in its own order. "eager" leaves such attention as it is written.
    numerics: "eager" gives eager's bits on a CPU: only what rounds once is compiled; sums, exponentials and the like
        stay with ATen, written-out attention stays as it is, half precision is rounded wherever eager stores it.
        "default" compiles those too: the last bits differ, and kernels compute in float32 between loads and stores.
    cuda_graphs: record what a program launches on an NVIDIA GPU, and replay it (mode "reduce-overhead"). What a program
        returns stays allocated. A result that the caller still holds is never overwritten: such a call is launched.
    recorded_sizes: sets of symbolic sizes for which a program keeps recordings, forward and backward each. A set is
        recorded when it comes for the second time, and replaced when it has not come for 16 times as many calls; calls
        of other sizes are launched, with one warning.
    autotune: matrix products on an NVIDIA GPU, with their epilogues, run as the quicker of ATen's call and Triton
        templates, timed when a program is first loaded on a kind of device (seconds for each product; cached).
    freeze: programs without gradients compute what depends on parameters and buffers alone once: casts, batch norms
        folded into convolutions, packed weights in channels-last layout. A changed weight is noticed, unless it was
        written through `.data` or behind torch's back (`stagefold.freezing`).
    stage: the fields that the user set of each slot's options object.
    """

    cache: bool = True
    cache_dir: Path | None = None
    cache_size: int = 8192
    cache_days: int = 90
    trace_dir: Path | None = None
    verify: bool = False
    progress: bool | None = None
    recompile_limit: int = 8
    rng: Literal["default", "eager"] = "default"
    numerics: Literal["default", "eager"] = "default"
    cuda_graphs: bool = False
    recorded_sizes: int = Replay.sizes
    autotune: bool = False
    freeze: bool = False
    stage: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()

    @property
    def cache_directory(self) -> Path:
        return self.cache_dir or default_cache_dir()

    @property
    def broken_directory(self) -> Path:
        """Where documents are saved that break a constraint: beside the trace, or in the cache."""
        return (self.trace_dir or self.cache_directory) / "broken"

    @property
    def cache_limits(self) -> Limits:
        return Limits(self.cache_size * 1_000_000, self.cache_days)

    def for_stage(self, slot: str) -> dict[str, Any]:
        """The fields that the user set for the stage in `slot`."""
        return dict(dict(self.stage).get(slot, ()))

    def implied(self, slot: str) -> dict[str, str]:
        """The fields of the stage in `slot` that follow of `numerics` and `rng`, where the user does not set them."""
        if self.numerics == "eager":
            return {"primops": {"numerics": "eager"}, "loopir": {"numerics": "eager"},
                    "aotgrad": {"written_attention": "keep"}}.get(slot, {})  # fmt: skip
        return {"written_attention": "without_dropout"} if slot == "aotgrad" and self.rng == "eager" else {}


_HINTS = {name: hint for name, hint in get_type_hints(Options).items() if name != "stage"}


def checked(key: str, value: Any, hint: Any) -> Any:
    """What an option of this type is given; raises `BadOption` for what it cannot be. Objects are left to the stage."""
    if not _fits(value, hint):
        found = repr(value) if Literal in (get_origin(hint), *map(get_origin, get_args(hint))) else type(value).__name__
        as_json = 'On the command line a value is JSON: true, 3, \'["a", "b"]\'.' if found == "str" else None
        raise BadOption(f"option {key!r} must be {_wanted(hint)}, not {found}", fix=as_json)
    return Path(value) if isinstance(value, str) and Path in get_args(hint) else value


def _fits(value: Any, hint: Any) -> bool:
    kind, members = get_origin(hint), get_args(hint)
    if kind is Literal:
        return any(type(value) is type(one) and value == one for one in members)
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in members)
    if kind in (tuple, frozenset):
        return isinstance(value, (tuple, list, set, frozenset, Mapping))
    if kind is Callable:
        return callable(value)
    kinds = {bool: bool, int: int, float: (float, int), str: str, Path: (Path, str), type(None): type(None)}
    return hint not in kinds or (isinstance(value, kinds[hint]) and (hint is bool or not isinstance(value, bool)))


def _wanted(hint: Any) -> str:
    kind, members = get_origin(hint), get_args(hint)
    if kind is Literal:
        return f"one of {', '.join(map(str, members))}"
    if kind in (Union, UnionType):
        return " or ".join(map(_wanted, members))
    if kind in (tuple, frozenset):
        return "a tuple"
    return "callable" if kind is Callable else "None" if hint is type(None) else str(getattr(hint, "__name__", hint))


def parse_options(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """Merge a mode and a dict of options into one frozen object; refuse what nobody knows.

    >>> parse_options(None, {"cache": False}).cache
    False
    """
    if mode is not None and options is not None:
        raise BadOption("mode and options are both given", fix="Pass one of the two, as with torch.compile.")
    if mode is not None and mode not in MODES:
        raise BadOption(f"unknown mode {mode!r}", fix=f"Use one of: {', '.join(MODES)}.")
    merged: dict[str, Any] = dict(MODES[mode] if mode is not None else options or {})
    environment = os.environ.get("STAGEFOLD_TRACE")
    if environment and "trace_dir" not in merged:
        merged["trace_dir"] = environment
    own: dict[str, Any] = {}
    stage: dict[str, dict[str, Any]] = {}
    for key, value in merged.items():
        slot, dot, field = key.partition(".")
        if dot and slot in SLOTS:
            stage.setdefault(slot, {})[field] = value
        elif key in _HINTS:
            own[key] = checked(key, value, _HINTS[key])
        else:
            raise _unknown(key)
    packed = tuple((slot, tuple(fields.items())) for slot, fields in stage.items())
    return Options(stage=packed, **own)


def _unknown(key: str) -> BadOption:
    known = [*_HINTS, *(f"{slot}.<field>" for slot in SLOTS)]
    _, dot, field = key.partition(".")
    names = [f"{one}.{field}" for one in SLOTS] if dot else list(_HINTS)
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.8 if dot else 0.6)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known options: {', '.join(known)}."
    return BadOption(f"unknown option {key!r}", fix=hint)
