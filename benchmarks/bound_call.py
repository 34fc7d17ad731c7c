"""What binding adds to each call, beside torch's ahead-of-time runtime, in one run.

    python benchmarks/bound_call.py [--parameters 2] [--repeat 2000]

A small program is traced by both; the halves are replaced by functions that return ready tensors, so that a call is the
binding alone: reading inputs, the autograd function, saving, outputs. Prints microseconds of CPU and ratios.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotgrad import AotGrad, bind, cut
from aotgrad.testing import capture_by_torch_function
from stagewire.graph import Graph, Ref, definitions


def program(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """A chain of products."""
    for weight in weights:
        x = torch.tanh(x @ weight)
    return x


def ready(graph: Graph) -> Callable[..., tuple[Any, ...]]:
    """A function that returns tensors of the graph's result types at once."""
    values = definitions(graph)
    made = [torch.zeros(values[arg.name].type.shape) if isinstance(arg, Ref) else None for arg in graph.outputs]
    return lambda *inputs: tuple([None if t is None else t.detach() for t in made])


def torch_bound(x: torch.Tensor, weights: list[torch.Tensor]) -> Callable[..., Any]:
    """The program bound by torch's ahead-of-time runtime, as torch.compile's back ends call it."""
    from torch._functorch.aot_autograd import aot_module_simplified

    names = ", ".join(f"w{number}" for number in range(len(weights)))
    traced = torch.fx.symbolic_trace(eval(f"lambda x, {names}: (program(x, {names}),)", {"program": program}))
    return aot_module_simplified(traced, (x, *weights), fw_compiler=torch_ready, bw_compiler=torch_ready)


def torch_ready(graph: Any, inputs: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
    """The same for a graph of torch's tracing."""
    (outputs,) = (node.args[0] for node in graph.graph.nodes if node.op == "output")
    made = [None if node is None else torch.zeros(node.meta["val"].shape) for node in outputs]

    def run(given: list[Any]) -> list[Any]:
        given.clear()
        return [None if t is None else t.detach() for t in made]

    run._boxed_call = True
    return run


def microseconds(run: Callable[[], Any], repeat: int) -> float:
    """CPU time of one call, the best of several rounds."""
    best = float("inf")
    for _ in range(9):
        start = time.process_time()
        for _ in range(repeat):
            run()
        best = min(best, time.process_time() - start)
    return best / repeat * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(4, 4)
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(given.parameters)]
    tangent, engine = torch.ones(4, 4), torch.autograd.Variable._execution_engine

    def step(call: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            result = call(x, *weights)
            result = result if isinstance(result, torch.Tensor) else result[0]
            engine.run_backward((result,), (tangent,), False, False, tuple(weights), True, False)

        return run

    print(f"{given.parameters} parameters; us a call     ours     torch's   ratio     eager program")
    for label in ("inference", "training, forward", "training, both"):
        with torch.set_grad_enabled(label != "inference"):
            ours, theirs, eager = measure(x, weights, step if label == "training, both" else None, given.repeat)
        print(f"  {label:20} {ours:12.2f} {theirs:10.2f} {ours / theirs:8.3f} {eager:12.2f}")


def measure(x: torch.Tensor, weights: list[torch.Tensor], step: Any, repeat: int) -> tuple[float, float, float]:
    """Added by our binding, added by torch's, and the eager program; `step` makes a call one with its backward."""
    capture, _ = capture_by_torch_function(program, [x, *weights])
    parts = cut(AotGrad().run(capture))
    forward = ready(parts.forward)
    backward = None if parts.backward is None else ready(parts.backward)
    calls = (bind(parts.binding, forward, backward), torch_bound(x, weights), program)
    runs = [step(call) if step else (lambda call=call: call(x, *weights)) for call in calls]
    alone = microseconds(lambda: forward(x, *weights), repeat)
    if step and backward is not None:
        alone += microseconds(backward, repeat)
    ours, theirs, eager = (microseconds(run, repeat) for run in runs)
    return ours - alone, theirs - alone, eager


if __name__ == "__main__":
    main()
