"""An artifact as a callable: machine code that it brought, or programs that are compiled here from its documents."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch

from absint.cpu_kernels import cpu_kernels
from absint.wire import from_arg
from aotgrad import bind, run_plain
from codegen.portable import Requirement, load_compiled, obstacle
from stagefold.archive import Archive, append_members
from stagefold.artifact import file_format
from stagefold.artifact.arguments import Arguments
from stagefold.artifact.trees import build
from stagefold.artifact.weights import read_weights, write_weights
from stagefold.errors import BadArtifact, CheckFailed, CompiledAgain, NotRunnable, RunsPlain
from stagefold.torch_capabilities import torch_release
from stagewire.capture import Capture, Relation
from stagewire.codec import decode
from stagewire.collector import resting_collector
from stagewire.errors import PartlyDone
from stagewire.program import Program

Callee = Callable[..., tuple[Any, ...]]


def load(
    file: str | os.PathLike[str],
    *,
    trust: bool = False,
    recompile: bool | None = None,
    weights: str | os.PathLike[str] | None = None,
) -> Artifact:
    """The artifact in a file (see `stagefold.export`), ready to be called.

    trust: whether machine code of the file may run in this process, as only that of people you trust may. Without it
        the program is compiled here from the file's documents, which are data and are checked; a warning says so.
    recompile: compile from the documents: None where `trust` is False, True also where the machine code is for another
        torch, processor or C library, False never.
    weights: the safetensors file with the tensors, where they are not inside.

    Errors: `BadArtifact`, and `NotRunnable` where nothing in the file may or can be run here.
    """
    with resting_collector():  # what is made here stays, and torch's objects take it long to look at
        archive = Archive(file, file_format.INDEX, file_format.FORMAT, BadArtifact)
        header = archive.decode(file_format.INDEX, file_format.Header)
        members = archive.members()
        stored = members.pop(file_format.WEIGHTS, None)
        if weights is not None:
            stored = Path(weights).read_bytes()
        if stored is None and header.held:
            fix = "Name their file: load(FILE, weights=...)."
            raise BadArtifact(f"the weights of {archive.path} lie beside it", fix=fix)
        held = read_weights(header.held, stored or b"", header.gradients) if header.held else ()
        artifact = Artifact(header, held, members)
        artifact.start(trust=trust, recompile=not trust if recompile is None else recompile)
    return artifact


class Artifact:
    """A model that was exported.

    Called as the model was: `artifact(*args, **kwargs)`. `header` says what it takes; `state` are the tensors that the
    model held, by name: parameters, buffers that calls write into, constants.
    """

    def __init__(self, header: file_format.Header, held: Sequence[torch.Tensor], members: Mapping[str, bytes]) -> None:
        """members: by name, without the weights."""
        self.header = header
        self.state = {row.name: tensor for row, tensor in zip(header.held, held, strict=True)}
        self._held, self._members = tuple(held), dict(members)
        self._function: Callee | None = None
        self._arguments: Arguments | None = None

    def __repr__(self) -> str:
        return f"<Artifact of {self.header.name}: {', '.join(code.isa for code in self.header.codes) or 'documents'}>"

    def parameters(self) -> list[torch.Tensor]:
        """Those of the model, for an optimizer."""
        return [self.state[row.name] for row in self.header.held if row.role == "parameter"]

    def save(self, file: str | os.PathLike[str], *, weights: str | os.PathLike[str] | None = None) -> None:
        """Write it to one file, with the tensors as they are now; weights: a file beside it for these instead."""
        stored = write_weights(self.header.held, self._held)
        if weights is not None:
            Path(weights).write_bytes(stored)
        append_members(None, self._members | ({file_format.WEIGHTS: stored} if weights is None else {}), Path(file))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return build(self.header.results, iter(self._results(self._started()[1].leaves(args, kwargs))))

    def run(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The leaves of the result for the leaves of the arguments, in order and without their containers."""
        self._started()[1].check(leaves)
        return self._results(leaves)

    def start(self, *, trust: bool, recompile: bool) -> None:
        """Load the machine code, or compile the documents, as `load` says."""
        check_header(self.header)
        reason = "nobody said to trust its machine code" if not trust else _mismatch(self.header)
        rules: tuple[Relation, ...] = ()
        code = None if reason is not None else _runnable(self.header.codes)
        if isinstance(code, str):
            reason = code
        if isinstance(code, Requirement):
            self._function, rules = self._of_machine_code(code)
        elif recompile and file_format.CAPTURE in self._members:
            message = f"{self.header.name} is compiled on this machine from its documents: {reason}"
            warnings.warn(message, CompiledAgain, stacklevel=3)
            self._function = self._compiled()
        else:
            why = "" if file_format.CAPTURE in self._members else ", nor has it documents to compile again"
            fix = "Say load(FILE, trust=True) if you trust those who made it." if not trust else NotRunnable.fix
            raise NotRunnable(f"{self.header.name} is not run: {reason}{why}", fix=fix)
        self._arguments = Arguments(self.header, rules)

    def _started(self) -> tuple[Callee, Arguments]:
        if self._function is None or self._arguments is None:
            self.start(trust=True, recompile=False)  # it was made by this process
        assert self._function is not None
        assert self._arguments is not None
        return self._function, self._arguments

    def _of_machine_code(self, code: Requirement) -> tuple[Callee, tuple[Relation, ...]]:
        prefix = file_format.library_member(code.isa, "").removesuffix(".so")
        libraries = {
            name.removeprefix(prefix).removesuffix(".so"): data
            for name, data in self._members.items()
            if name.startswith(prefix)
        }

        def bound(member: str) -> tuple[Callee, Program]:
            program = cast(Program, decode(self._members[member], expect="program"))
            units = [program.forward] if program.backward is None else [program.forward, program.backward]
            runs = load_compiled(units, code.isa, libraries)
            backward = runs[1] if len(runs) == 2 else None
            plain = (
                self._plain
                if file_format.CAPTURE in self._members and file_format.PREPARE not in self._members
                else None
            )
            return bind(program.binding, runs[0], backward, plain=plain, takes_list=True), program

        main, program = bound(file_format.MAIN)
        if file_format.PREPARE not in self._members:
            return main, program.binding.assumptions
        from stagefold.freezing import FrozenCall  # loads passes on graphs

        prepare, preparing = bound(file_format.PREPARE)
        sources = tuple(place for place, given in enumerate(preparing.binding.inputs) if given.used)
        return FrozenCall(main, prepare, sources), program.binding.assumptions

    def _plain(self, *inputs: Any) -> tuple[Any, ...]:
        """The calls of the graph by eager torch, for inputs that share memory with one that is written."""
        message = f"{self.header.name} runs plain for inputs that share memory with one that it writes into"
        warnings.warn(message, RunsPlain, stacklevel=4)
        return run_plain(cast(Capture, decode(self._members[file_format.CAPTURE], expect="capture")), *inputs)

    def _compiled(self) -> Callee:
        from stagefold.compiled_capture import compile_capture  # loads all stages
        from stagewire.verify import verify

        capture = decode(self._members[file_format.CAPTURE], expect="capture")
        verify(capture)
        assert isinstance(capture, Capture)
        if len(capture.inputs) != len(self.header.inputs):
            raise BadArtifact(f"the capture has {len(capture.inputs)} inputs, and the index {len(self.header.inputs)}")
        chosen = {key: value for key, value in self.header.options.items() if key in ("numerics", "rng", "freeze")}
        return compile_capture(capture, options=chosen)  # which checks what it is given by itself

    def _results(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        function, held = self._started()[0], self._held
        inputs = [leaves[number] if number >= 0 else held[-1 - number] for number in self.header.inputs]
        try:
            is_cast = torch.is_autocast_enabled("cpu")  # its own casts are in the program
            with torch.autocast("cpu", enabled=False) if is_cast else nullcontext():
                outputs = function(*inputs)
        except PartlyDone as error:
            raise error.error from None
        for number in self.header.checks:
            if not outputs[number]:
                raise CheckFailed(f"what {self.header.name} takes for true of its data is false")
        return tuple([self._result(one, outputs, leaves) for one in self.header.outputs])

    def _result(self, result: Any, outputs: Sequence[Any], leaves: Sequence[Any]) -> Any:
        match result.kind:
            case "output":
                return outputs[result.index]
            case "number":
                return outputs[result.index].item()
            case "leaf":
                return leaves[result.index]
            case "held":
                return self._held[result.index]
        return from_arg(result.value, lambda ref: ref)


def check_header(header: file_format.Header) -> None:
    """Refuse numbers of leaves and tensors that do not exist, and sizes that no argument has."""
    leaves, held = len(header.leaves), len(header.held)
    known = {str(dim) for leaf in header.leaves if leaf.type is not None for dim in leaf.type.shape}
    faults = [
        *(number for number in header.inputs if not -held <= number < leaves),
        *(one for one in header.outputs if one.kind == "leaf" and not 0 <= one.index < leaves),
        *(one for one in header.outputs if one.kind == "held" and not 0 <= one.index < held),
        *(one for one in header.ranges if one.symbol not in known),
    ]
    if faults or len(header.arguments.children) != 2:
        raise BadArtifact(f"the index of {header.name} does not agree with itself")


def _mismatch(header: file_format.Header) -> str | None:
    """Why programs of this artifact do not run with this torch."""
    if header.torch != torch_release():
        return f"it was exported for torch {header.torch}, and this is {torch_release()}"
    if header.kernels not in ("", cpu_kernels()):
        return f"it was exported where ATen's kernels were {header.kernels}, and here they are {cpu_kernels()}"
    return None


def _runnable(codes: Sequence[Requirement]) -> Requirement | str:
    """The machine code for most instructions that this process can run, or why it runs none."""
    best_first = sorted(codes, key=lambda code: (code.isa == "native", code.isa), reverse=True)
    obstacles = [(code, obstacle(code)) for code in best_first]
    runnable = [code for code, reason in obstacles if reason is None]
    told = "; ".join(f"{code.isa}: {reason}" for code, reason in obstacles)
    return runnable[0] if runnable else told or "it has no machine code"
