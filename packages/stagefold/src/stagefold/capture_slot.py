"""The slot capture: a front end of the user's in place of bytecap.

    stage ::= name version consumes="call" produces="capture" run(Call) -> Captured       or a function of a Call

The stage is asked for each call that nothing serves which it captured before. Whether something does is decided here,
by the arguments and torch's modes, and by the stage's own `holds` for everything else that it read.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from bytecap import disable, global_state
from bytecap.driver.stances import current_stance, register
from stagefold.backends import CaptureBackend
from stagefold.compiled_capture import CompiledCapture
from stagefold.errors import BadStage, OtherInputs, RunsPlain
from stagefold.options import Options
from stagefold.pipeline import noted, verified
from stagefold.torch_capabilities import TORCH
from stagewire.capture import Capture
from stagewire.errors import DATA_ERRORS, PartlyDone, StageError
from stagewire.stage import Stage


@dataclasses.dataclass(frozen=True)
class Call:
    """What a stage of the slot is given: a call of the function or module that is compiled.

    dynamic: as of `compile`.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dynamic: bool | None = None


def result_alone(outputs: tuple[Any, ...]) -> Any:
    """A single output itself; several as a tuple."""
    return outputs[0] if len(outputs) == 1 else outputs


def always(call: Call) -> bool:
    """What a stage says that relied on the arguments alone."""
    return True


@dataclasses.dataclass(frozen=True)
class Captured:
    """What a stage of the slot returns.

    capture: the graph. Its inputs are the tensors and ints among the arguments, as torch's pytrees order them, then
        `held`. It serves calls with other tensors of the same types (sizes may differ where they are symbols), whose
        other arguments are equal, under the same modes of torch.
    held: tensors of the model, which are given to every run. `from_fx` and `from_export` return both.
    result: makes what the function returns of the capture's outputs. Default: `result_alone`.
    holds: whether what else the stage read (attributes, globals) is still so. Default: it read nothing else.
    """

    capture: Capture
    held: Sequence[torch.Tensor] = ()
    result: Callable[[tuple[Any, ...]], Any] = result_alone
    holds: Callable[[Call], bool] = always


class _Arguments(NamedTuple):
    """Arguments by what becomes of them. inputs: of the graph. constants: for which it was captured."""

    inputs: tuple[Any, ...]
    constants: tuple[Any, ...]
    structure: Any

    def fit(self, other: _Arguments) -> bool:
        """Whether constants and structure are those of `other`."""
        pairs = zip(self.constants, other.constants, strict=False)
        return self.structure == other.structure and all(_same(*pair) for pair in pairs)


_PLAIN = (bool, float, complex, str, bytes, torch.dtype, torch.device)
_INPUT = object()


def _arguments(call: Call) -> _Arguments:
    leaves, structure = TORCH.tree_flatten((call.args, dict(call.kwargs)))
    is_input = [isinstance(leaf, torch.Tensor) or type(leaf) is int for leaf in leaves]
    inputs = tuple(leaf for leaf, given in zip(leaves, is_input, strict=True) if given)
    constants = tuple(_INPUT if given else leaf for leaf, given in zip(leaves, is_input, strict=True))
    return _Arguments(inputs, constants, structure)


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)


class _Version(NamedTuple):
    """A captured call, compiled."""

    captured: Captured
    arguments: _Arguments
    program: CompiledCapture

    def misfit(self, call: Call, given: _Arguments) -> str | None:
        """Why it does not serve a call; None where it does."""
        if not given.fit(self.arguments):
            return "other arguments than tensors and ints are others"
        if self.captured.capture.state != global_state():
            return "torch's modes are others"
        try:
            self.program.check(given.inputs)
        except OtherInputs as error:
            return error.message
        return None if self.captured.holds(call) else "the stage says that it does not hold any more"


class CaptureSlot:
    """A callable like `function`, whose calls `stage` captures and `compiler` compiles.

    options: those of the back end; after `recompile_limit` versions, calls that none of them serves run plain.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        stage: Stage,
        compiler: CaptureBackend,
        options: Options,
        dynamic: bool | None = None,
    ) -> None:
        self.function, self.stage, self.compiler = function, stage, compiler
        self.options, self.dynamic = options, dynamic
        if hasattr(compiler, "ends"):
            compiler.ends["capture"] = stage
        self._versions: tuple[_Version, ...] = ()
        self._lock = threading.RLock()
        register(self)

    def as_function(self) -> Callable[..., Any]:
        """A function over it, which bytecap and torch.compile leave alone."""

        @functools.wraps(self.function, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        return disable(call)  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_stance() == "force_eager":
            return self.function(*args, **kwargs)
        call = Call(self.function, args, kwargs, self.dynamic)
        given = _arguments(call)
        version = self._serving(self._versions, call, given)
        if version is None:
            with self._lock:
                version = self._serving(self._versions, call, given) or self._new_version(call, given)
        if version is None:
            return self.function(*args, **kwargs)
        try:
            outputs = version.program.run(given.inputs)
        except PartlyDone as error:
            raise error.error from None
        except Exception as error:
            if not version.program.atomic:
                raise
            is_fault = isinstance(error, StageError) and error.is_fault
            if is_fault and not isinstance(error.__cause__, DATA_ERRORS):
                raise
            result = self.function(*args, **kwargs)  # nothing has changed yet: the program raises eager's own
            if is_fault:
                raise
            message = f"the graph that stage {self.stage.name!r} captured raised, and the function does not"
            warnings.warn(f"{message}, which runs plain: {type(error).__name__}: {error}", RunsPlain, stacklevel=3)
            return result
        return version.captured.result(outputs)

    def reset(self) -> None:
        """Drop all versions."""
        with self._lock:
            self._versions = ()

    def forget_other_threads(self) -> None:
        """In a forked child: no other thread holds the lock."""
        self._lock = threading.RLock()

    @staticmethod
    def _serving(versions: Iterable[_Version], call: Call, given: _Arguments) -> _Version | None:
        return next((one for one in versions if one.misfit(call, given) is None), None)

    def _new_version(self, call: Call, given: _Arguments) -> _Version | None:
        """What the stage captures of a call, compiled; None where there are as many versions as may be."""
        if len(self._versions) >= self.options.recompile_limit:
            last = self._versions[-1].misfit(call, given)
            message = (
                f"stage {self.stage.name!r} captured {len(self._versions)} versions; other calls run plain ({last})"
            )
            warnings.warn(message, RunsPlain, stacklevel=3)
            return None
        what = f"what stage {self.stage.name!r} made in slot 'capture'"
        with noted(self.stage, "capture"):
            captured = self.stage.run(call)  # type: ignore[arg-type]  # no document: the slot is at an end
        if not isinstance(captured, Captured):
            raise BadStage(f"{what} is a {type(captured).__name__}, not a stagefold.Captured")
        verified(captured.capture, what, self.options.broken_directory)
        version = _Version(
            captured, given, CompiledCapture(captured.capture, captured.held, self.compiler, given.inputs)
        )
        misfit = version.misfit(call, given)
        if misfit is not None:
            raise BadStage(f"{what} does not serve the call that it was made of: {misfit}")
        self._versions = (*self._versions, version)
        return version
