"""Depthwise convolutions and their gradients as kernels."""

import pytest
import torch

from codegen import Options, load
from codegen.stage import emit
from codegen.triton import depthwise
from stagewire.expr import symbol
from stagewire.graph import List, Ref
from stagewire.loop import Buffer, Extern, LoopGraph
from stagewire.program import CallExtern, Launch
from stagewire.types import TensorType, channels_last_stride, contiguous
from stagewire.verify.programs import check_unit

N = symbol("n")
OPTIONS = Options(target="triton")
NUMBERS = {"bfloat16": 3e-2, "float16": 4e-3, "float32": 1e-5}


def typed(tensor, device="cpu"):
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorType(dtype, tuple(tensor.shape), tensor.stride(), device=device)


def graph_of(target, operands, rest, results):
    """A graph of one call. operands: tensors by name, in order; results: the types of those that are kept."""
    buffers = [Buffer(name, typed(one), "input") for name, one in operands.items() if one is not None]
    buffers += [Buffer(name, type_, "extern") for name, type_ in results.items() if type_ is not None]
    args = (*(None if one is None else Ref(name) for name, one in operands.items()), *rest)
    call = Extern(target, args, {}, tuple(name if type_ is not None else "" for name, type_ in results.items()))
    return LoopGraph(
        buffers=tuple(buffers),
        inputs=tuple(name for name, one in operands.items() if one is not None),
        outputs=tuple(Ref(name) for name, type_ in results.items() if type_ is not None),
        steps=(call,),
    )


def image(dtype, shape, is_last, seed):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.contiguous(memory_format=torch.channels_last) if is_last and len(shape) == 4 else made


class Case:
    """A convolution of `channels` channels, with what eager computes of it in double precision."""

    def __init__(self, dtype, size, taps, step, pad, dilation, is_last=False, channels=5, bias=False, batch=2):
        rank = len(size)
        self.x = image(dtype, (batch, channels, *size), is_last, 0)
        self.w = image(dtype, (channels, 1, *taps), False, 1)
        self.b = image(dtype, (channels,), False, 2) if bias else None
        self.moves = ([step] * rank, [pad] * rank, [dilation] * rank, False, [0] * rank, channels)
        double = [one.double() if one is not None else None for one in (self.x, self.w, self.b)]
        self.y = torch.ops.aten.convolution(*double, *self.moves)
        self.g = image(dtype, self.y.shape, is_last, 3)
        sizes = None if self.b is None else [channels]
        mask = [True, True, bias]
        self.back = torch.ops.aten.convolution_backward(self.g.double(), *double[:2], sizes, *self.moves, mask)
        self.rest = tuple(List(tuple(m)) if isinstance(m, list) else m for m in self.moves)
        self.bias_sizes = None if sizes is None else List(tuple(sizes))

    def forward(self):
        made = typed(self.g)
        return graph_of("aten.convolution.default", {"x": self.x, "w": self.w, "b": self.b}, self.rest, {"y": made})

    def backward(self, mask=(True, True, False)):
        operands = {"g": self.g, "x": self.x, "w": self.w}
        types = [typed(one) if one is not None else None for one in (self.x, self.w, self.b)]
        kept = {n: t if m else None for n, t, m in zip(("gx", "gw", "gb"), types, mask, strict=True)}
        rest = (self.bias_sizes, *self.rest, List(tuple(mask)))
        return graph_of("aten.convolution_backward.default", operands, rest, kept)


def run(graph, tensors, directory, device):
    buffers = tuple(Buffer(b.name, TensorType(**fields(b.type) | {"device": device}), b.role) for b in graph.buffers)
    unit = emit(LoopGraph(**fields(graph) | {"buffers": buffers}), OPTIONS)
    assert not list(check_unit(unit))
    made = load(unit, directory)(*(one.to(device) for one in tensors if one is not None))
    return unit, [one.cpu() for one in made]


def fields(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def close(made, exact, dtype):
    scale = exact.abs().max()
    assert (made.double() - exact).abs().max() <= NUMBERS[dtype] * scale
    assert made.shape == exact.shape


@pytest.fixture
def everywhere(monkeypatch):
    """Kernels also where cuDNN is as fast."""
    for rule in ("makes_well", "sums_well"):
        monkeypatch.setattr(depthwise._Writer, rule, lambda *_: True)
    monkeypatch.setattr(depthwise, "LAST_DTYPES", depthwise.DTYPES)


CASES = [
    pytest.param("float32", (7, 9), (3, 3), 1, 1, 1, id="plain"),
    pytest.param("bfloat16", (14, 14), (5, 5), 2, 2, 1, id="steps"),
    pytest.param("float32", (8, 11), (3, 2), 2, 0, 2, id="dilated"),
    pytest.param("float16", (9, 6), (2, 4), 3, 3, 1, id="padding-as-wide-as-the-window"),
    pytest.param("float32", (5, 4), (2, 2), 3, 0, 1, id="gaps"),
    pytest.param("float32", (11,), (5,), 1, 2, 2, id="one-dimension"),
    pytest.param("float32", (3, 3), (7, 7), 1, 3, 1, id="larger-than-the-image"),
]


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("is_last", [False, True], ids=["planes", "channels-last"])
@pytest.mark.parametrize(("dtype", "size", "taps", "step", "pad", "dilation"), CASES)
def test_what_kernels_make_is_as_near_as_the_dtype_allows(
    dtype, size, taps, step, pad, dilation, is_last, directory, device
):
    case = Case(getattr(torch, dtype), size, taps, step, pad, dilation, is_last)
    unit, (made,) = run(case.forward(), (case.x, case.w), directory, device)
    assert not any(isinstance(one, CallExtern) for one in unit.instructions)
    close(made, case.y, dtype)
    assert made.stride() == case.g.stride()
    unit, grads = run(case.backward(), (case.g, case.x, case.w), directory, device)
    assert not any(isinstance(one, CallExtern) for one in unit.instructions)
    for made, exact in zip(grads, case.back, strict=False):
        close(made, exact, dtype)
    assert grads[0].stride() == case.x.stride()


def test_the_bias_is_added_before_rounding_and_its_gradient_stays_with_aten(directory, device):
    case = Case(torch.float16, (6, 6), (3, 3), 1, 1, 1, bias=True)
    x, w, b = ((100 * one).round().clamp(-60, 60) for one in (case.x, case.w, case.b))  # float32 holds all sums of them
    _, (made,) = run(case.forward(), (x, w, b), directory, device)
    assert torch.equal(made, torch.ops.aten.convolution(x.double(), w.double(), b.double(), *case.moves).half())
    unit, grads = run(case.backward((True, True, True)), (case.g, case.x, case.w), directory, device)
    (call,) = [one for one in unit.instructions if isinstance(one, CallExtern)]
    assert call.args[-1] == List((False, False, True))
    for made, exact in zip(grads, case.back, strict=True):
        close(made, exact, "float16")


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, False)], ids=["image", "weight"])
def test_only_what_is_wanted_is_computed(mask, directory, device):
    case = Case(torch.float32, (6, 6), (3, 3), 1, 1, 1)
    _, (made,) = run(case.backward(mask), (case.g, case.x, case.w), directory, device)
    close(made, case.back[mask.index(True)], "float32")


def test_a_weight_of_many_windows_is_made_of_parts_that_are_summed(directory, device):
    case = Case(torch.float32, (40, 40), (3, 3), 1, 1, 1, batch=4)
    unit, (made,) = run(case.backward((False, True, False)), (case.g, case.x, case.w), directory, device)
    assert sum(isinstance(one, Launch) for one in unit.instructions) == 2
    close(made, case.back[1], "float32")


def test_equal_convolutions_share_a_kernel():
    case = Case(torch.float32, (6, 6), (3, 3), 1, 1, 1)
    graph = case.forward()
    (call,) = graph.steps
    again = Extern(call.target, (Ref("y"), *call.args[1:]), {}, ("z",))
    buffers = (*graph.buffers, Buffer("z", graph.buffers[-1].type, "extern"))
    twice = LoopGraph(buffers=buffers, inputs=graph.inputs, outputs=(Ref("z"),), steps=(call, again))
    unit = emit(twice, OPTIONS)
    assert len(unit.kernels) == 1
    assert sum(isinstance(one, Launch) for one in unit.instructions) == 2


def any_number(graph):
    """The graph with any number of images."""
    images = [b for b in graph.buffers if len(b.type.shape) == 4 and b.name not in ("w", "gw")]
    changed = {
        b.name: Buffer(b.name, TensorType(**fields(b.type) | {"shape": (N, *b.type.shape[1:])}), b.role) for b in images
    }
    return LoopGraph(**fields(graph) | {"buffers": tuple(changed.get(b.name, b) for b in graph.buffers)})


@pytest.mark.usefixtures("counting_interpreter")
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("is_last", [False, True], ids=["planes", "channels-last"])
def test_one_program_takes_any_number_of_images(is_last, batch, directory, device):
    case = Case(torch.float32, (12, 12), (3, 3), 1, 1, 1, is_last, batch=batch)
    unit, (made,) = run(any_number(case.forward()), (case.x, case.w), directory, device)
    assert not any(isinstance(one, CallExtern) for one in unit.instructions)
    close(made, case.y, "float32")
    unit, grads = run(any_number(case.backward()), (case.g, case.x, case.w), directory, device)
    assert not any(isinstance(one, CallExtern) for one in unit.instructions)
    for made, exact in zip(grads, case.back, strict=False):
        close(made, exact, "float32")


def left_to_aten(graph, options=OPTIONS):
    unit = emit(graph, options)
    return any(isinstance(one, CallExtern) for one in unit.instructions)


def test_others_stay_with_aten():
    assert left_to_aten(Case(torch.float64, (6, 6), (3, 3), 1, 1, 1).forward())
    assert left_to_aten(Case(torch.float32, (12, 12), (8, 8), 1, 1, 1).forward())
    assert left_to_aten(Case(torch.float32, (6, 6), (3, 3), 1, 1, 1, channels=1).forward())
    assert left_to_aten(Case(torch.float32, (2,), (1,), 1, 0, 1, channels=65536, batch=1).forward())
    assert left_to_aten(
        Case(torch.float32, (6, 6), (3, 3), 1, 1, 1).forward(), Options(target="triton", depthwise=False)
    )


def test_a_weight_of_few_windows_stays_with_cudnn_where_channels_are_fastest():
    case = Case(torch.float16, (6, 6), (3, 3), 1, 1, 1, is_last=True)
    (call,) = [one for one in emit(case.backward(), OPTIONS).instructions if isinstance(one, CallExtern)]
    assert (call.results, call.args[-1]) == (("", "gw", ""), List((False, True, False)))
    assert not left_to_aten(Case(torch.float32, (6, 6), (3, 3), 1, 1, 1).backward())


def test_large_windows_of_few_places_stay_with_cudnn_where_channels_are_fastest():
    few, many = (Case(torch.float16, (n, n), (7, 7), 1, 3, 1, is_last=True) for n in (14, 80))
    assert left_to_aten(few.forward())
    assert not left_to_aten(many.forward())
    assert not left_to_aten(Case(torch.float16, (14, 14), (7, 7), 1, 3, 1).forward())


def test_two_features_of_a_channel_stay_with_aten():
    x, w = image(torch.float32, (2, 3, 6, 6), False, 0), image(torch.float32, (6, 1, 3, 3), False, 1)
    rest = (List((1, 1)), List((1, 1)), List((1, 1)), False, List((0, 0)), 3)
    made = contiguous("float32", (2, 6, 6, 6))
    assert left_to_aten(graph_of("aten.convolution.default", {"x": x, "w": w, "b": None}, rest, {"y": made}))


def test_images_of_the_cpu_in_a_program_for_a_gpu_stay_with_aten():
    graph = Case(torch.float32, (6, 6), (3, 3), 1, 1, 1).forward()
    other = Buffer("o", TensorType("float32", (2,), (1,), device="cuda:0"), "input")
    assert left_to_aten(
        LoopGraph(**{**fields(graph), "buffers": (*graph.buffers, other), "inputs": (*graph.inputs, "o")})
    )


def test_strides_are_channels_last_where_the_call_states_so():
    assert typed(image(torch.float32, (2, 3, 4, 4), True, 0)).stride == channels_last_stride((2, 3, 4, 4))
