"""Our stages two to five behind torch's own capture: `torch.compile(model, backend="stagefold")`.

Registered under the entry-point group `torch_dynamo_backends`, so that no import of stagefold is needed. It is a
compiler for AOTAutograd too (`fw_compiler`, `bw_compiler`), and `compile_graph` one for back ends with settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.fx

from stagefold.adapters.from_fx import described_inputs, from_fx
from stagefold.adapters.torch_sizes import require, symbols_among
from stagefold.backend import StagefoldBackend
from stagefold.compiled_capture import compile_once
from stagefold.errors import BadOption
from stagefold.options import parse_options
from stagefold.torch_capabilities import foreign


def compile_fx(
    module: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend "stagefold": what torch calls with a GraphModule, example inputs, and its own `mode` and `options`.

    Errors: BadOption under torch's minifier, whose scripts name a back end and have no place for options.
    """
    if (mode or options) and getattr(foreign().settings, "repro_after", None) == "dynamo":
        raise BadOption("torch's minifier leaves mode and options out of the scripts that it writes", fix=_FOR_MINIFIER)
    return compile_graph(module, example_inputs, mode=mode, options=options)


_FOR_MINIFIER = """\
Put them into a back end with a name, and its import into the script:
    import torch._dynamo
    from stagefold.adapters.dynamo import compile_graph
    @torch._dynamo.register_backend
    def mine(module, inputs):
        return compile_graph(module, inputs, options={...})"""


def compile_graph(
    module: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A GraphModule of torch.compile or AOTAutograd by our stages.

    options: those of `stagefold.compile`, and "stages": its argument of that name. What the stages rely on of symbolic
    sizes becomes guards of torch's.
    """
    settings = dict(options or {})
    stages = settings.pop("stages", None)
    backend = StagefoldBackend(parse_options(mode, settings or None), stages)
    with foreign().no_modes():
        capture, held = from_fx(module, example_inputs, is_guarded=True)
        function, assumed = compile_once(backend, capture, (*_numbers(example_inputs), *held))
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    fixed = {one.name: one.hint for one in capture.symbols}  # by torch, where it knows no symbol of that name
    require(assumed, fixed | symbols_among(described_inputs(placeholders, example_inputs)))

    def call(*inputs: Any) -> tuple[Any, ...]:
        return function(*_numbers(inputs), *held)  # (torch's minifier runs it on the example inputs)

    for name in ("named_parameters", "named_buffers", "zero_grad"):  # and asks it for these
        setattr(call, name, getattr(module, name))
    return call


def _numbers(inputs: Iterable[Any]) -> list[Any]:
    """With what torch's sizes are worth now in their place."""
    return [one.node.hint if isinstance(one, torch.SymInt) else one for one in inputs]
