"""A convolution of symbolic sizes is right whether a run has few windows or many, and the sizes decide which way."""

import dataclasses

import pytest
import torch

from codegen import load
from codegen.cpp import tuning
from codegen.runtime import cpu_products
from stagewire.expr import Expr, parse_expr
from stagewire.graph import List, Ref
from stagewire.program import CallExtern, Unit
from stagewire.types import TensorType

CHANNELS, FEATURES = 32, 64
CASES = {
    "3x3": dict(kernel=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1)),
    "3x3, step 2": dict(kernel=(3, 3), stride=(2, 2), padding=(1, 1), dilation=(1, 1)),
    "3x1, dilated": dict(kernel=(3, 1), stride=(1, 2), padding=(2, 0), dilation=(2, 1)),
    "1x1, step 2": dict(kernel=(1, 1), stride=(2, 2), padding=(0, 0), dilation=(1, 1), features=512),
    "1x1, large": dict(kernel=(1, 1), stride=(1, 1), padding=(0, 0), dilation=(1, 1), features=4096),
}
IMAGES = ((1, 1, 1), (4, 2, 2), (2, 3, 5), (4, 4, 4), (3, 9, 8), (0, 4, 4))
"""How many, and their height and width."""


@pytest.fixture(params=("fast", "reference"))
def executor(request):
    return request.param


@pytest.fixture(params=(0, None, 1 << 40), ids=("never", "as measured", "always"))
def taken(request, monkeypatch):
    """How often the product of a backward was taken; `request.param`: up to how many windows it is."""
    calls, function = [], cpu_products.convolution_backward
    monkeypatch.setattr(cpu_products, "convolution_backward", lambda *args: calls.append(args) or function(*args))
    if request.param is not None:
        names = ("product_windows", "product_gradient_windows", "product_places")
        numbers = dataclasses.replace(tuning.TUNED, **dict.fromkeys(names, request.param))
        monkeypatch.setattr(tuning, "TUNED", numbers)
    return calls


def case(name):
    geometry = dict(CASES[name])
    weight = torch.randn(geometry.pop("features", FEATURES), CHANNELS, *geometry.pop("kernel"))
    assert weight.numel() >= tuning.TUNED.product_weights or name.startswith("3x1")
    return (weight if weight.numel() >= tuning.TUNED.product_weights else weight.repeat(4, 1, 1, 1)), geometry


def arguments(geometry):
    pairs = [List(geometry[name]) for name in ("stride", "padding", "dilation")]
    return (*pairs, False, List((0, 0)), 1)


def type_of(shape, channels_last=False):
    _, c, h, w = shape
    stride = (c * h * w, 1, w * c, c) if channels_last else (c * h * w, h * w, w, 1)
    return TensorType("float32", tuple(shape), stride, 0, "cpu")


def size_of_result(name, geometry, weight, dimension):
    pad, step, reach = (geometry[key][dimension] for key in ("padding", "stride", "dilation"))
    less = reach * (weight.shape[2 + dimension] - 1) + 1
    return parse_expr(f"({name} + {2 * pad - less})//({step}) + 1")


def sizes(weight, geometry):
    n, h, w = map(Expr, "nhw")
    out = [size_of_result(name, geometry, weight, place) for place, name in enumerate("hw")]
    return (n, CHANNELS, h, w), (n, weight.shape[0], *out)


def unit(target, args, given, made):
    results = tuple(f"r{number}" for number in range(len(made)))
    call = CallExtern(target, args, {}, results, tuple(made))
    return Unit(
        target="cpp", source="", kernels=(), inputs=tuple(given), input_types=tuple(given.values()),
        outputs=tuple(map(Ref, results)), instructions=(call,),
    )  # fmt: skip


def fixed(tensor):
    return TensorType("float32", tuple(tensor.shape), tuple(tensor.stride()), 0, "cpu")


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_forward(name, channels_last, taken, executor, directory):
    weight, geometry = case(name)
    bias = torch.randn(weight.shape[0], 2)[:, 0] if channels_last else torch.randn(weight.shape[0])
    image, made = sizes(weight, geometry)
    given = {"x": type_of(image, channels_last), "w": fixed(weight), "b": fixed(bias)}
    args = (Ref("x"), Ref("w"), Ref("b"), *arguments(geometry))
    one = unit("aten.convolution.default", args, given, [type_of(made, channels_last)])
    assert cpu_products.window_products(one.instructions[0], given) is not None
    run = load(one, directory, executor=executor)
    for n, h, w in IMAGES:
        x = torch.randn(n, CHANNELS, h, w)
        x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
        if channels_last and x.is_contiguous():
            continue  # of one place: its strides are ambiguous
        expected = torch.conv2d(x, weight, bias, **geometry)
        (found,) = run(x, weight, bias)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert found.numel() == 0 or found.stride() == expected.stride() or 1 in found.shape


@pytest.mark.parametrize("mask", [(True, True, True), (False, True, False)])
@pytest.mark.parametrize("name", CASES)
def test_backward(name, mask, taken, executor, directory):
    weight, geometry = case(name)
    image, made = sizes(weight, geometry)
    given = {"g": type_of(made), "x": type_of(image), "w": fixed(weight)}
    args = (Ref("g"), Ref("x"), Ref("w"), List((weight.shape[0],)), *arguments(geometry), List(mask))
    types = [type_of(image), fixed(weight), fixed(weight[:, 0, 0, 0].contiguous())]
    kept = [place for place, wanted in enumerate(mask) if wanted]
    results = tuple(f"r{place}" if wanted else "" for place, wanted in enumerate(mask))
    one = unit("aten.convolution_backward.default", args, given, types)
    call = CallExtern(one.instructions[0].target, args, {}, results, tuple(types))
    run = load(
        Unit(target="cpp", source="", kernels=(), inputs=one.inputs, input_types=one.input_types,
             outputs=tuple(Ref(results[place]) for place in kept), instructions=(call,)),
        directory, executor=executor,
    )  # fmt: skip
    most = tuning.TUNED.product_places if name == "1x1, large" else tuning.TUNED.product_gradient_windows
    for n, h, w in IMAGES:
        x = torch.randn(n, CHANNELS, h, w)
        grad = torch.randn_like(torch.conv2d(x, weight, None, **geometry))
        values = [grad, x, weight, [weight.shape[0]], *map(list, geometry.values()), False, [0, 0], 1, list(mask)]
        expected = torch.ops.aten.convolution_backward.default(*values)
        taken.clear()
        found = run(grad, x, weight)
        for place, tensor in zip(kept, found, strict=True):
            torch.testing.assert_close(tensor, expected[place], rtol=1e-4, atol=1e-3)
        windows = grad.shape[0] * grad.shape[2] * grad.shape[3]
        assert bool(taken) == (executor == "fast" and windows <= most)


def test_what_is_left_to_aten():
    weight, geometry = case("3x3")
    image, made = sizes(weight, geometry)
    given = {"x": type_of(image), "w": fixed(weight)}

    def found(made=made, weight=weight, groups=1):
        call = CallExtern(
            "aten.convolution.default", (Ref("x"), Ref("w"), None, *arguments(geometry)[:-1], groups), {}, ("r",),
            (type_of(made),),
        )  # fmt: skip
        return cpu_products.window_products(call, {**given, "w": fixed(weight)})

    assert found() is not None
    assert found(made=(4, weight.shape[0], 2, 2)) is None  # sizes are numbers: a program of one size has a product
    assert found(groups=2) is None
    assert found(weight=weight[:8, :8].contiguous()) is None
    assert found(weight=torch.randn(64, 8, 7, 7)) is None
