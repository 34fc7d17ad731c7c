"""What our own stages make of torch's operators keeps all constraints that foreign stages are held to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("expecttest", reason="torch's operator database imports it")

import bytecap
from stagefold.errors import BrokenDocument
from stagefold.options import Options
from stagefold.pipeline import Pipeline
from stagewire.capture import Capture
from tools.same_programs import moved, samples

SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
def test_documents_of_operators(share: int) -> None:
    pipeline, verified = Pipeline.build(Options(verify=True)), 0
    broken: list[str] = []

    def backend(capture: Capture, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        nonlocal verified
        for own in (capture, moved(capture)):
            try:
                pipeline.run(own)
                verified += 1
            except BrokenDocument as error:
                broken.append(str(error))
        return bytecap.executor(capture)

    for _, call in samples(slice(share, None, SHARES)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                call(backend)
            except Exception:  # of eager, of capture, or of a stage that refuses the call: documents are looked at here
                continue
    assert not broken, "\n".join(broken)
    assert verified > 200
