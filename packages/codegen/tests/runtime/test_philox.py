"""The state of random kernels, and what happens where ATen's draw other numbers than the formula."""

import pytest
import torch

from codegen import random_threads
from codegen.errors import OtherNumbers
from codegen.runtime import philox
from codegen.runtime.arguments import operator


def test_the_generator_of_the_cpu_gives_seeds():
    draw = operator("stagefold.philox_state.default")
    torch.manual_seed(1)
    first, second = draw(4, "cpu"), draw(4, "cpu")
    torch.manual_seed(1)
    assert draw(4, "cpu") == first
    assert first[0] != second[0]
    assert [(x.dtype, x.shape) for x in first] == [(torch.int64, ())] * 2


def test_without_a_gpu_aten_draws(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert random_threads(tmp_path) == 0
    assert not list(tmp_path.iterdir())


@pytest.fixture
def gpus(monkeypatch):
    """Two devices of these kinds, on which nothing has been checked."""
    kinds = ["A", "A"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(philox, "_described", lambda number: (kinds[number], 1024))
    philox._checked.cache_clear()
    yield kinds
    philox._checked.cache_clear()


def test_the_answer_is_kept_on_disk(gpus, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(philox, "agrees", lambda *case: asked.append(case) or True)
    assert random_threads(tmp_path) == 1024
    philox._checked.cache_clear()
    assert random_threads(tmp_path) == 1024
    assert len(asked) == len(philox.CHECKED)


def test_other_numbers_are_left_to_aten_with_a_warning(gpus, monkeypatch, tmp_path):
    monkeypatch.setattr(philox, "agrees", lambda kernel, *_: kernel != "bernoulli")
    with pytest.warns(OtherNumbers, match="draws other random numbers on A"):
        assert random_threads(tmp_path) == 0
    philox._checked.cache_clear()
    monkeypatch.setattr(philox, "agrees", lambda *_: pytest.fail("asked again"))
    with pytest.warns(OtherNumbers):
        assert random_threads(tmp_path) == 0


def test_several_kinds_of_gpu_are_left_to_aten(gpus, tmp_path):
    gpus[1] = "B"
    assert random_threads(tmp_path) == 0
