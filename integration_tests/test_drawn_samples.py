"""Programs drawn from torch's operator database mean the same in every form, forward and backward, and are compiled.

Oracle: eager, and the program in float64 for how far off a result may be (`stagefold.testing.conformance`).
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("expecttest", reason="torch's operator database imports it")

from aotgrad.testing.conformance import copy_of
from primops.decompositions import TABLE
from primops.testing.strategies import programs
from stagefold.options import Options
from stagefold.pipeline import Pipeline
from stagefold.reference import meaning
from stagefold.testing.conformance import faults
from stagefold.testing.programs import Trial
from stagefold.testing.samples import sampled_functions, sampled_programs
from stagewire.capture import Capture
from stagewire.codec import Document, decode, encode
from stagewire.errors import StageError
from stagewire.grad import Grad
from stagewire.testing.strategies import examples
from stagewire.verify import verify

EXAMPLES, LEAST, ULPS = 500, 0.95, 1024.0
PARTS, TOGETHER = 20, 4
STATISTICS = ("batch_norm", "layer_norm", "group_norm", "instance_norm")
CUMULATIVE = {
    "prod": "cumprod",
    "aten.prod.default": "aten.cumprod.default",
    "aten.prod.dim_int": "aten.cumprod.default",
}
"""What is drawn in the place of products, of whose gradient eager has several formulas. It looks at the data to choose
one, where a graph has one alone: with two zeros and a nan eager's is 0 and the graph's nan; so is their layout."""
FUNCTIONS = tuple(CUMULATIVE.get(name, name) for name in sampled_functions())
PIPELINE = Pipeline.build(Options(cache=False))
quiet = settings(deadline=None, suppress_health_check=list(HealthCheck))


def documents(capture: Capture, until: str) -> list[Document]:
    """What the stages make of a capture, each verified; none of a program that they refuse."""
    made: list[Document] = []
    try:
        PIPELINE.run(capture, observe=lambda event: made.append(event.document), until=until)
    except StageError as error:
        if not error.refuses_program:
            raise
        return []
    for document in made:
        verify(document)
    return made


def check(document: Document, capture: Capture, inputs: list[torch.Tensor], strides: bool = True) -> None:
    """Values as far off eager as float64 allows, and eager's strides."""
    (fault,) = faults([document], capture, Trial("", lambda *_: None, tuple(inputs), ULPS, False))
    assert fault is None, fault
    found, expected = (meaning(one)(*map(copy_of, inputs)) for one in (document, capture))
    for ours, eager in zip(found, expected, strict=True):
        if strides and isinstance(eager, torch.Tensor) and eager.numel():
            assert steps(ours) == steps(eager)


def steps(tensor: torch.Tensor) -> list[int]:
    """The strides that say where elements are."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def test_nearly_every_function_and_operator_is_drawn() -> None:
    """What there are samples of, in 500 captures; operators that have a decomposition, in 500 graphs of ATen's calls.

    Half of the graphs come of captures: these hold none that autograd takes apart, the others none of a backward.
    """
    called: set[str] = set()
    reached: set[str] = set()
    for number, (capture, _) in enumerate(examples(sampled_programs(), EXAMPLES)):
        verify(capture)
        called |= set(capture.code.name.split(", "))
        for grad in documents(capture, "grad") if number % 2 else ():
            assert isinstance(grad, Grad)
            reached |= {node.target for node in grad.joint.nodes}
    for graph, _ in examples(programs(max_nodes=80, ops=("sampled",)), EXAMPLES // 2):
        reached |= {node.target for node in graph.nodes}
    missing = set(FUNCTIONS) - called, TABLE.keys() - reached
    assert len(missing[0]) <= (1 - LEAST) * len(FUNCTIONS), sorted(missing[0])
    assert len(missing[1]) <= (1 - LEAST) * len(TABLE), sorted(missing[1])
    assert {"aten.convolution.default", "aten.convolution_backward.default"} <= reached


@pytest.mark.parametrize("part", range(0, len(FUNCTIONS), TOGETHER))
@settings(quiet, max_examples=2)
@given(data=st.data())
def test_interpreted(part: int, data: st.DataObject) -> None:
    """The last document that an interpreter runs: whatever a stage before it gets wrong shows there.

    So it does for a GPU, of which neither the stages nor the interpreter need one.
    """
    capture, inputs = data.draw(sampled_programs(1, 3, FUNCTIONS[part : part + TOGETHER], altered=True))
    for loop in documents(capture, "loop")[-1:]:
        check(loop, capture, inputs)
    for loop in on_a_gpu(capture):
        check(loop, capture, inputs, strides=False)


def on_a_gpu(capture: Capture) -> list[Document]:
    """The Loop that the stages make for a GPU, with its buffers on the CPU; none where an op has no type rule.

    The statistics of normalisations are of another dtype there, and the buffer of a log_sigmoid is empty.
    """
    name = capture.code.name
    if "log_sigmoid" in name or ("bfloat16" in str(capture) and any(word in name for word in STATISTICS)):
        return []
    try:
        made = documents(moved(capture, "cpu", "cuda:0"), "loop")
    except (AssertionError, RuntimeError) as error:
        if "CUDA" not in str(error):
            raise
        return []
    return [moved(loop, "cuda:0", "cpu") for loop in made[-1:]]


def moved(document: Document, device: str, other: str) -> Document:
    return decode(encode(document).replace(f'"{device}"'.encode(), f'"{other}"'.encode()))


@pytest.mark.parametrize("function", ["linalg_lu_factor", "aten.multi_margin_loss.default", "aten.logit.default"])
def test_once_wrong(function: str) -> None:
    """A call without results, a weight of one class that is a number, a clamp whose bounds cross."""
    for capture, inputs in examples(sampled_programs(functions=[function]), 2):
        check(documents(capture, "loop")[-1], capture, inputs)


@pytest.mark.parametrize("part", range(PARTS))
@settings(quiet, max_examples=3)
@given(data=st.data())
def test_compiled(part: int, data: st.DataObject) -> None:
    capture, inputs = data.draw(sampled_programs(least=9, most=14, functions=FUNCTIONS[part::PARTS]))
    for program in documents(capture, "program")[-1:]:
        check(program, capture, inputs)
