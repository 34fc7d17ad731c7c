"""The property of the stage: what a Grad means is what its Capture means, for drawn programs and through the codec."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from aotgrad import AotGrad, Options, interpret
from aotgrad.errors import BackwardFailed
from aotgrad.testing import check_against_eager, eager_refuses_backward, run_capture
from aotgrad.testing.strategies import programs
from stagewire.capture import Capture
from stagewire.codec import decode, encode
from stagewire.grad import Grad
from stagewire.parser import parse_document
from stagewire.printer import print_document
from stagewire.verify import verify

Drawn = tuple[Capture, list[torch.Tensor]]


@settings(max_examples=300, deadline=None)
@given(programs())
def test_interpreting_the_grad_is_running_the_capture(drawn: Drawn) -> None:
    """Outputs, aliases, mutations, gradients and the random stream; or the refusal that eager gives later."""
    capture, inputs = drawn
    if eager_refuses_backward(capture, inputs):
        with pytest.raises(BackwardFailed):
            AotGrad().run(capture)
        return
    verify(check_against_eager(capture, inputs))


@settings(max_examples=60, deadline=None)
@given(programs())
def test_kept_joint_graphs_change_nothing(drawn: Drawn) -> None:
    capture, inputs = drawn
    if not eager_refuses_backward(capture, inputs):
        verify(check_against_eager(capture, inputs, Options(keep_joint=True)))


@settings(max_examples=60, deadline=None)
@given(programs())
def test_inference_means_the_same(drawn: Drawn) -> None:
    capture, inputs = drawn
    given_ = [t.detach() for t in inputs]
    copies = [t.clone(memory_format=torch.preserve_format) for t in given_]
    grad = AotGrad().run(capture, Options(training=False))
    assert grad.backward is None
    with torch.no_grad():
        torch.manual_seed(0)
        expected = run_capture(_switched_off(capture), copies)
        torch.manual_seed(0)
        got = interpret(grad, given_)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def _switched_off(capture: Capture) -> Capture:
    return capture


@settings(max_examples=60, deadline=None)
@given(programs())
def test_documents_survive_codec_and_printer(drawn: Drawn) -> None:
    capture, inputs = drawn
    if eager_refuses_backward(capture, inputs):
        return
    grad = AotGrad().run(capture, Options(keep_joint=True))
    assert isinstance(grad, Grad)
    for form in ("json", "msgpack"):
        assert decode(encode(grad, form), "grad") == grad
    assert parse_document(print_document(grad)) == grad
    assert AotGrad().run(decode(encode(capture), "capture"), Options(keep_joint=True)) == grad
