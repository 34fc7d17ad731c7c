"""The property of the stage: what a Grad means is what its Capture means, for drawn programs and through the codec."""

from __future__ import annotations

import torch
from hypothesis import assume, event, given, settings

from aotgrad import AotGrad, Options, interpret
from aotgrad.errors import BackwardFailed, NoInverse, UnsupportedOutput
from aotgrad.testing import check_against_eager, check_second_order, eager_refuses_backward, run_capture
from aotgrad.testing.strategies import programs
from stagewire.capture import Capture
from stagewire.codec import decode, encode
from stagewire.grad import Grad
from stagewire.parser import parse_document
from stagewire.printer import print_document
from stagewire.verify import faults, verify

Drawn = tuple[Capture, list[torch.Tensor]]


def refusal(capture: Capture) -> str | None:
    """The code with which the stage refuses the program, or None."""
    try:
        AotGrad().run(capture)
    except (BackwardFailed, NoInverse, UnsupportedOutput) as error:
        return error.code
    return None


def is_accepted(capture: Capture, inputs: list[torch.Tensor]) -> bool:
    """Neither eager nor this stage refuses the program."""
    return refusal(capture) is None and not eager_refuses_backward(capture, inputs)


@settings(max_examples=300, deadline=None)
@given(programs())
def test_interpreting_the_grad_is_running_the_capture(drawn: Drawn) -> None:
    """Outputs, aliases, mutations, gradients and the random stream; or a refusal with a code, as eager's or ours."""
    capture, inputs = drawn
    if eager_refuses_backward(capture, inputs):
        event(f"eager refuses, we say {refusal(capture) or 'nothing'}")
        return
    code = refusal(capture)
    assert code in (None, "AG004", "AG007")
    if code is None:
        verify(AotGrad().run(capture))
        parts = check_against_eager(capture, inputs)
        # Of ATen calls, not of prims: that views alias is what primops states of them (V5).
        assert not [fault for fault in faults(parts) if fault.label != "V5"]


@settings(max_examples=100, deadline=None)
@given(programs())
def test_gradients_of_gradients_are_those_of_eager(drawn: Drawn) -> None:
    capture, inputs = drawn
    assume(is_accepted(capture, inputs))
    event("compared" if check_second_order(capture, inputs) else "refused")


@settings(max_examples=60, deadline=None)
@given(programs())
def test_inference_means_the_same(drawn: Drawn) -> None:
    capture, inputs = drawn
    assume(is_accepted(capture, inputs))
    given_ = [t.detach() for t in inputs]
    copies = [t.clone(memory_format=torch.preserve_format) for t in given_]
    grad = AotGrad().run(capture, Options(training=False))
    assert not grad.binding.tangents
    with torch.no_grad():
        torch.manual_seed(0)
        expected = run_capture(capture, copies)
        torch.manual_seed(0)
        got = interpret(grad, given_)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(programs())
def test_documents_survive_codec_and_printer(drawn: Drawn) -> None:
    capture, inputs = drawn
    assume(is_accepted(capture, inputs))
    grad = AotGrad().run(capture)
    assert isinstance(grad, Grad)
    for form in ("json", "msgpack"):
        assert decode(encode(grad, form), "grad") == grad
    assert parse_document(print_document(grad)) == grad
    assert AotGrad().run(decode(encode(capture), "capture")) == grad
