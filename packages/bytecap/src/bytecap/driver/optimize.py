"""`optimize(target, backend)`: a callable whose frames are captured, compiled by a backend, and replaced.

    call ::= guards of the entries, in C  --hit-->  replacement code (graph call, rebuilt result, side effects)
                                          --miss--> capture -> compile_guards -> backend -> new entry

`bytecap.driver.engine` is what happens on a miss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytecap.driver.engine import Backend, Engine
from bytecap.driver.frame_selection import root_of
from bytecap.driver.stage import Options
from bytecap.errors import BadOption
from bytecap.events import Event
from bytecap.graph.size_policy import SizePolicy
from bytecap.guards.filtering import Filter
from bytecap.hook import Dispatcher

_NAMES = ("__module__", "__name__", "__qualname__", "__doc__", "__type_params__")


def optimize(
    target: Callable[..., Any],
    backend: Backend,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    recompile_limit: int = 8,
    on_event: Callable[[Event], None] | None = None,
    warns: bool | None = None,
    options: Options | None = None,
    guard_filter: Filter | None = None,
) -> Callable[..., Any]:
    """A callable like `target` whose work is captured and run by what `backend` makes of it.

    target: a function, method, nn.Module (through its `__call__`, hooks included) or other callable. Of a generator or
        coroutine function each piece between two suspensions is captured by itself (`bytecap.breaks.outline`).
    backend: `backend(capture, example_inputs) -> callable(*tensors) -> tuple of tensors`; its errors propagate. If the
        callable has an attribute `assumes`, a tuple of `Relation`s on the symbols, these are guarded as well.
    fullgraph: raise the coded error of what cannot be captured, instead of breaking the graph there.
    recompile_limit: captures of one code object; past it new cases run plain with a warning (fullgraph: BC010).
    on_event: called with each `Event`. The logger "bytecap" is told of every break.
    warns: a target that runs plain as a whole and a limit that was reached are shown as `CaptureWarning`, each once.
        Default: where there is no `on_event`.
    options: how frames are captured.
    guard_filter: says which guards stay (`bytecap.guards.filtering`); what the dropped ones said is taken to hold.

    dynamic: which sizes of inputs are symbols. None: those that changed from one call to the next; True: all; False:
        none. Only for a backend that says `takes_symbols = True`; what it cannot take after all (an error with
        `needs_fixed_sizes`) is captured for each size. `takes_data_sizes = True`: sizes and numbers that data decides
        are values of the graph; `breaks_at_data = True`: only under fullgraph, else graphs end there.

    A callable of the backend serves all captures of the same work, wherever their inputs are read, unless it has an
    attribute `keeps_inputs` that is true (what it computed from its inputs it keeps).

    Errors: `CannotCapture` subclasses under fullgraph. Errors of the program itself are raised by its plain run, as
    without optimize.

    >>> import torch
    >>> double = optimize(lambda x: x * 2, lambda capture, inputs: lambda x: (x + x,))
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """
    if recompile_limit < 1:
        raise BadOption(f"recompile_limit={recompile_limit}: at least one capture is needed", fix="Pass 1 or more.")
    function, code = root_of(target)
    takes_data = getattr(backend, "takes_data_sizes", False)
    policy = SizePolicy(
        dynamic is not False and getattr(backend, "takes_symbols", False),
        dynamic is True,
        whole=fullgraph,
        of_data=takes_data and (fullgraph or not getattr(backend, "breaks_at_data", False)),
    )
    engine = Engine(backend, fullgraph, recompile_limit, on_event, options, policy, guard_filter)
    engine.warns = on_event is None if warns is None else warns
    call = Dispatcher(engine.owner, engine.adopt(function, code))
    for name in _NAMES:
        value = getattr(target, name, None)
        if value is not None:
            setattr(call, name, value)
    return call
