"""Sizes that data decides: symbols without a hint."""

import pytest
import torch

from absint import AbstractTensor, DataDependentError, abstract_call, contiguous
from absint.data_sizes import DataSizedMode
from absint.symbolic import ShapeEnv, dim_of, make_size
from stagewire.capture import Relation
from stagewire.expr import evaluate, symbol


def _mode():
    env = ShapeEnv()
    return env, DataSizedMode(
        lambda lower, upper: make_size(env, env.create_unbacked(f"u{len(env.unbacked)}", lower=lower, upper=upper))
    )


def _call(env, mode, function, *args):
    env.generic = True
    try:
        return abstract_call(function, args, mode=mode)
    finally:
        env.generic = False


def test_one_mask_selects_one_size():
    env, mode = _mode()
    x = AbstractTensor(contiguous((4, 6), torch.float32))
    mask = _call(env, mode, torch.gt, x, 0)
    kept, again = _call(env, mode, torch.Tensor.__getitem__, x, mask), _call(env, mode, torch.masked_select, x, mask)
    places = _call(env, mode, torch.nonzero, mask)
    assert [str(size) for size in (kept.shape[0], again.shape[0], places.shape[0])] == ["u0"] * 3
    assert str(_call(env, mode, torch.add, kept, again).shape[0]) == "u0"
    _call(env, mode, torch.Tensor.fill_, mask, True)
    assert str(_call(env, mode, torch.Tensor.__getitem__, x, mask).shape[0]) == "u1"


def test_nothing_is_assumed_of_them():
    env, mode = _mode()
    x = AbstractTensor(contiguous((4, 6), torch.float32))
    size = _call(env, mode, torch.unique, x).shape[0]
    for question in (lambda: size == 1, lambda: size > 3, lambda: int(size), lambda: bool(size), lambda: size < 9):
        with pytest.raises(DataDependentError):
            question()
    assert size >= 0
    assert size <= 24
    assert size != -1
    assert env.relations == []


def test_a_kernel_that_takes_no_such_dtype_is_named():
    env, mode = _mode()
    x = AbstractTensor(contiguous((24,), torch.float32))
    kept = _call(env, mode, torch.Tensor.__getitem__, x, _call(env, mode, torch.gt, x, 0))
    with pytest.raises(NotImplementedError, match="gcd"):
        _call(env, mode, torch.gcd, kept, kept)


@pytest.mark.parametrize("known", [1, 5, 24])
def test_what_a_known_size_makes_of_it(known):
    env, mode = _mode()
    x = AbstractTensor(contiguous((24,), torch.float32))
    kept = _call(env, mode, torch.Tensor.__getitem__, x, _call(env, mode, torch.gt, x, 0))
    other = AbstractTensor(contiguous((known,), torch.float32))
    found = _call(env, mode, torch.add, kept, other).shape[0]
    assert str(found) == ("u0" if known == 1 else str(known))
    assert _call(env, mode, torch.Tensor.view, kept, 2, 6).stride() == (6, 1)
    with pytest.raises(Exception, match=r"must match|depends on data"):
        _call(env, mode, torch.add, kept, _call(env, mode, torch.unique, x))


@pytest.mark.parametrize(("start", "end"), [(1, None), (None, -1), (-3, None), (None, 2), (2, 5), (-2, -1), (9, 3)])
def test_slices_have_the_length_that_the_size_gives(start, end):
    env, mode = _mode()
    x = AbstractTensor(contiguous((24,), torch.float32))
    kept = _call(env, mode, torch.Tensor.__getitem__, x, _call(env, mode, torch.gt, x, 0))
    found = _call(env, mode, torch.Tensor.__getitem__, kept, slice(start, end)).shape[0]
    for count in range(8):
        assert evaluate(dim_of(found), {"u0": count}) == len(range(count)[start:end])


def test_known_tells_what_follows_and_assumes_nothing():
    env = ShapeEnv()
    env.create_unbacked("u0", lower=0, upper=24)
    relations = {
        operator: [env.known(Relation(symbol("u0"), operator, number)) for number in (-1, 3, 25)]
        for operator in ("==", "!=", "<", "<=", ">", ">=")
    }
    assert relations == {
        "==": [False, None, False],
        "!=": [True, None, True],
        "<": [False, None, True],
        "<=": [False, None, True],
        ">": [True, None, False],
        ">=": [True, None, False],
    }
    assert env.relations == []


def test_slices_of_the_same_bounds_are_of_one_length():
    env, mode = _mode()
    first, last = (make_size(env, env.create_unbacked(name, lower=None)) for name in ("first", "last"))
    x, y, z = (AbstractTensor(contiguous(shape, torch.float32)) for shape in ((7, 2), (7, 3), (2, 7)))
    lengths = [
        _call(env, mode, torch.Tensor.__getitem__, tensor, slice(*bounds)).shape[0]
        for tensor, bounds in ((x, (first, last)), (y, (first, last)), (x, (first, None)), (z, (first, last)))
    ]
    assert str(lengths[0]) == str(lengths[1])
    assert len({str(length) for length in lengths}) == 3


@pytest.mark.parametrize("value", [2.5, 7])
def test_new_full_asks_for_no_size_of_its_tensor(value):
    env, mode = _mode()
    rows = make_size(env, env.create("s0", 5))
    x = AbstractTensor(contiguous((rows, 3), torch.float32))
    kept = _call(env, mode, torch.Tensor.__getitem__, x, _call(env, mode, torch.gt, x, 0))
    for tensor in (x, kept):
        assert _call(env, mode, torch.Tensor.new_full, tensor, (4,), value).shape == (4,)
    assert env.relations == []
    with pytest.raises(RuntimeError, match="overflow"):
        _call(env, mode, torch.Tensor.new_full, _call(env, mode, torch.Tensor.char, x), (4,), 1000)


def test_a_refusal_of_sizes_that_do_not_fit_fixes_none():
    env, mode = _mode()
    x = AbstractTensor(contiguous((make_size(env, env.create("s0", 5)), 3), torch.float32))
    with pytest.raises(RuntimeError, match="invalid for input of size 3\\*s0"):
        _call(env, mode, torch.Tensor.view, x, (7, 11))
    assert env.relations == []
