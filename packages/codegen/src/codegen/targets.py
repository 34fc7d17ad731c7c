"""Targets: what writes the kernels of a unit, and what makes a callable of it.

    target ::= name version interface devices serves lacks
               emit(loopgraph, options, hints, multiples) -> unit      load(unit*, directory, executor) -> bound*

A distribution registers its own by an entry point of the group `stagefold.targets`: an object of a class that derives
`Target`, under its name; "cpp" and "triton" are registered so, too. `Options(target="auto")` takes the one that the
group `stagefold.devices` has under the device of the program ("cpu", "cuda").

What a kernel reads and writes (the C interface, `INTERFACE`):

    void kernel(void *const *buffers, const int64_t *sizes, int64_t threads, int64_t *status)

buffers: the addresses of the first elements of the tensors that `Launch.buffers` names, in order. sizes: the values of
`Launch.sizes`. threads: how many the kernel may use. status: the kernel sets bits, and clears none:
`OUT_OF_RANGE`, `ZERO_DIVISOR`, `NO_SUCH_VALUE` (1, 2, 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from codegen.choices import Bound
from codegen.errors import UnknownTarget, UnsupportedDevice, UnsupportedKernel
from stagewire.loop import Compute, Kernel, Load, LoopGraph, Reduce, Scan
from stagewire.program import Unit
from stagewire.sizes import NO_HINTS, Hints
from stagewire.stage import discover, registered
from stagewire.statements import select

if TYPE_CHECKING:
    from codegen.stage import Options

GROUP = "stagefold.targets"
DEVICES = "stagefold.devices"

INTERFACE = 1
"""Grows when `Target` or the C interface of kernels changes: a target that was written for another one is refused."""

Executor = Literal["fast", "reference"]


class Target:
    """One target.

    name: that of its entry point and of its units. version: part of cache keys, with the code of its package.
    interface: the `INTERFACE` that it was written for.
    devices: types of devices whose tensors its kernels read and write.
    lacks: ops and dtypes that it has no code for, by the names of prims ("erfinv", "cumsum", "var_mean") and dtypes
        ("bfloat16"). What needs one of them stays with ATen (`primops.Options.lacks`), or is refused (CG020).
    forms: the group of entry points in which others register what their ops are in it; None: it has none of them.
    takes_symbols: whether sizes may be symbolic. suffix: of files of its source.
    """

    name: str
    version: str = "1"
    interface: int
    devices: frozenset[str] = frozenset(("cpu",))
    lacks: frozenset[str] = frozenset()
    forms: str | None = None
    takes_symbols: bool = True
    suffix: str = "txt"

    def lacking(self) -> frozenset[str]:
        """What it lacks, ops of other vocabularies among it: those that are computed at a point, and have no form."""
        known = registered(self.forms) if self.forms is not None else {}
        return self.lacks | (registered("stagefold.numpy").keys() - known.keys())

    def emit(
        self, graph: LoopGraph, options: Options, hints: Hints = NO_HINTS, multiples: tuple[tuple[str, int], ...] = ()
    ) -> Unit:
        """The unit of one direction, mostly by `codegen.wrapper.write_unit`. Imports no torch.

        hints, multiples: as in `codegen.stage.emit`; they decide what is quick, never what is right.
        """
        raise NotImplementedError

    def load(self, units: Sequence[Unit], directory: Path, executor: Executor) -> Sequence[Bound]:
        """One callable for each unit, mostly by `codegen.load.run_functions` or `run_addresses`.

        directory: for machine code; nobody else can write there. executor: "reference" runs one step an instruction.
        """
        raise NotImplementedError

    def prepare(self, directory: Path) -> None:
        """Begin what `load` will wait for."""


@cache
def find(name: str, group: str = GROUP) -> Target:
    """The registered target of a name (in `DEVICES`: of a device). Raises `UnknownTarget` (`UnsupportedDevice`)."""
    known = discover(group)
    if name not in known and group == DEVICES and known:
        raise UnsupportedDevice(f"no target is registered for the device {name}")
    if name not in known:
        again = "install codegen again: an editable install has the entry points of the day it was made"
        fix = f"The targets are: {', '.join(sorted(known)) or f'none; {again}'}."
        raise UnknownTarget(f"no installed distribution registers a target {name!r}", fix=fix)
    target: Target = known[name].load()
    made_for = getattr(target, "interface", None)
    if not isinstance(target, Target) or made_for != INTERFACE:
        raise UnknownTarget(
            f"{known[name].value}, registered as {name!r}, is a {type(target).__name__} for the interface {made_for}; "
            f"this codegen takes a Target for the interface {INTERFACE}",
            fix="Install a version of it that was made for this codegen.",
        )
    return target


def choose(name: str, *graphs: LoopGraph | None) -> Target:
    """The target of a name; of "auto" that of the device of the graphs, which is "cpu" where they have no other."""
    if name != "auto":
        return find(name)
    found = {buffer.type.device.partition(":")[0] for graph in graphs if graph is not None for buffer in graph.buffers}
    return find(min(found - {"cpu"}, default="cpu"), DEVICES)


def check(target: Target, graph: LoopGraph) -> None:
    """Raise `UnsupportedDevice` or `TargetLacks` for what the target has no code for."""
    for buffer in graph.buffers:
        if buffer.type.device.partition(":")[0] not in target.devices:
            raise UnsupportedDevice(f"{buffer.name} is a tensor on the device {buffer.type.device}")
    lacking = target.lacking()
    for kernel in graph.steps if lacking else ():
        for asked in features(kernel) if isinstance(kernel, Kernel) else ():
            if asked in lacking:
                raise UnsupportedKernel(f"the target {target.name!r} has no code for {asked} in {kernel.name}")  # type: ignore[union-attr]


def features(kernel: Kernel) -> Iterator[str]:
    """The ops and dtypes of a kernel."""
    for statement in select(kernel.sections, Load | Compute | Reduce | Scan):
        yield statement.dtype
        if isinstance(statement, Compute):
            yield statement.op
