"""Subclasses of tensors, compiled and eager: by `__torch_function__`, and wrappers by `__torch_dispatch__`."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.subclasses import WrapperSubclass
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

import stagefold

SIZES = (6, 6, 9, 12)


def matrix(size: int, columns: int = 8) -> Tensor:
    return torch.linspace(-2, 2, size * columns).view(size, columns)


class Named(Tensor):
    """By `__torch_function__` of torch.Tensor alone."""


class Counting(Tensor):
    """Sees each operation by its name, and negates products."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func.__name__)
        result = super().__torch_function__(func, types, args, kwargs or {})
        return -result if func is torch.Tensor.mul else result


class Int8Weight(Tensor):
    """A weight in int8 with a scale for each row, which products dequantize, as quantization libraries have it."""

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor, dtype: torch.dtype) -> Int8Weight:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=dtype, device=data.device)

    def __init__(self, data: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        self.int_data, self.scale = data, scale

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def from_float(cls, weight: Tensor) -> Int8Weight:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale, weight.dtype)

    def dequantize(self) -> Tensor:
        return self.int_data.to(self.dtype) * self.scale

    def __tensor_flatten__(self):
        return ["int_data", "scale"], self.dtype

    @classmethod
    def __tensor_unflatten__(cls, inner, dtype, outer_size, outer_stride):
        return cls(inner["int_data"], inner["scale"], dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs):
        match func:
            case torch.ops.aten.detach.default | torch.ops.aten.clone.default:
                return cls(func(args[0].int_data), func(args[0].scale), args[0].dtype)
            case torch.ops.aten.t.default:
                return Transposed(args[0])
        return func(*tree_map_only(cls, cls.dequantize, args), **tree_map_only(cls, cls.dequantize, kwargs))


class Transposed(Tensor):
    """The transpose of a wrapper: a wrapper of one."""

    @staticmethod
    def __new__(cls, base: Tensor) -> Transposed:
        return torch.Tensor._make_wrapper_subclass(cls, base.shape[::-1], dtype=base.dtype, device=base.device)

    def __init__(self, base: Tensor) -> None:
        self.base = base

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __tensor_flatten__(self):
        return ["base"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["base"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs):
        if func is torch.ops.aten.t.default:
            return args[0].base.detach()
        if func is torch.ops.aten.detach.default:
            return cls(args[0].base)
        plain = lambda given: given.base.dequantize().t()  # noqa: E731
        return func(*tree_map_only(cls, plain, args), **tree_map_only(cls, plain, kwargs or {}))


class Int4Weight(Tensor):
    """Two numbers of four bits in a byte, along the columns; the scale is data of the class's context."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, packed: Tensor, scale: float) -> Int4Weight:
        rows, columns = packed.shape
        return torch.Tensor._make_wrapper_subclass(cls, (rows, columns * 2), dtype=torch.float32)

    def __init__(self, packed: Tensor, scale: float) -> None:
        self.packed, self.scale = packed, scale

    @classmethod
    def from_float(cls, weight: Tensor, scale: float) -> Int4Weight:
        quantized = ((weight / scale).round().clamp(-8, 7) + 8).to(torch.uint8)
        return cls(quantized[:, ::2] | (quantized[:, 1::2] << 4), scale)

    def dequantize(self) -> Tensor:
        pairs = torch.stack([self.packed & 15, self.packed >> 4], -1).flatten(1)
        return (pairs.to(torch.float32) - 8) * self.scale

    def __tensor_flatten__(self):
        return ["packed"], self.scale

    @classmethod
    def __tensor_unflatten__(cls, inner, scale, outer_size, outer_stride):
        return cls(inner["packed"], scale)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return cls(func(args[0].packed), args[0].scale)
        return func(*tree_map_only(cls, cls.dequantize, args), **tree_map_only(cls, cls.dequantize, kwargs))


class Float8Weight(Tensor):
    """A weight in float8 with one scale; gradients of what is computed with it are those of the float product."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor) -> Float8Weight:
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, strides=data.stride(), dtype=torch.float32, device=data.device
        )

    def __init__(self, data: Tensor, scale: Tensor) -> None:
        self.data8, self.scale = data, scale

    @classmethod
    def from_float(cls, weight: Tensor) -> Float8Weight:
        scale = weight.abs().max() / 448
        return cls((weight / scale).to(torch.float8_e4m3fn), scale)

    def __tensor_flatten__(self):
        return ["data8", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["data8"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs):
        if func in (torch.ops.aten.t.default, torch.ops.aten.detach.default):
            return cls(func(args[0].data8), args[0].scale)
        plain = lambda given: given.data8.to(torch.float32) * given.scale  # noqa: E731
        return func(*tree_map_only(cls, plain, args), **tree_map_only(cls, plain, kwargs))


class Affine(Int8Weight):
    """Int8 numbers whose linear layers are said by `__torch_function__`, with a class of layouts for context."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            x, weight, *bias = args
            return nn.functional.linear(x, weight.dequantize(), *bias)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


FACTOR = torch.tensor([2.0])


class Other(WrapperSubclass):
    """Is unflattened as a WrapperSubclass."""


class Doubles(WrapperSubclass):
    """Brings a real tensor along."""

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        return Doubles(inner["a"], outer_size, outer_stride)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs):
        made = func(*tree_map_only(cls, lambda given: given.a, args), **(kwargs or {}))
        return cls(made * FACTOR + FACTOR)


class Masked(Tensor):
    """Numbers with a mask: sums leave out what is masked, sums of two are masked where either is."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data: Tensor, mask: Tensor) -> Masked:
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, strides=data.stride(), dtype=data.dtype, device=data.device
        )

    def __init__(self, data: Tensor, mask: Tensor) -> None:
        self.numbers, self.mask = data, mask

    def __tensor_flatten__(self):
        return ["numbers", "mask"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["numbers"], inner["mask"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs):
        numbers = tree_map_only(cls, lambda given: given.numbers, args)
        if func in (torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList):
            return func(torch.where(args[0].mask, numbers[0], 0), *numbers[1:], **kwargs)
        masks = [leaf.mask for leaf in tree_leaves(args) if isinstance(leaf, cls)]
        mask = masks[0] & masks[1] if len(masks) == 2 else masks[0]
        made = func(*numbers, **kwargs)
        if func in (torch.ops.aten.add_.Tensor, torch.ops.aten.mul_.Tensor):
            return args[0]
        return cls(made, mask if made.shape == mask.shape else mask.expand_as(made))


class Normed(Masked):
    """Its norm is a plain number."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs):
        if func is torch.ops.aten.linalg_vector_norm.default:
            return func(args[0].numbers, *args[1:], **kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)


class Placed(WrapperSubclass):
    """It is flattened to a tensor and an object, as a DTensor is."""

    def __init__(self, a: Tensor, **others: Any) -> None:
        super().__init__(a, **others)
        self.place = ("cpu", 0)

    def __tensor_flatten__(self):
        return ["a", "place"], None


def two(size: int) -> TwoTensor:
    return TwoTensor(matrix(size), matrix(size) * 2)


def masked(size: int) -> Masked:
    return Masked(matrix(size), matrix(size) > 0)


def linear(wrap: Any) -> nn.Linear:
    layer = nn.Linear(8, 4)
    with torch.no_grad():
        layer.weight.copy_(matrix(4))
        layer.bias.copy_(torch.arange(4.0))
    layer.weight = nn.Parameter(wrap(layer.weight.detach()), requires_grad=False)
    layer.bias.requires_grad_(False)
    return layer


# -- how two results are compared


def parts(value: Any) -> Any:
    """A tensor as its class, its layout, and its parts down to plain tensors."""
    if not isinstance(value, Tensor):
        return value
    about = (type(value).__name__, tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    if not hasattr(value, "__tensor_flatten__"):
        return (*about, value.detach().as_subclass(Tensor).clone())
    names, context = value.__tensor_flatten__()
    return (*about, context, *[parts(getattr(value, name)) for name in names])


def assert_same(found: Any, expected: Any) -> None:
    for ours, theirs in zip(tree_leaves(tree_map(parts, found)), tree_leaves(tree_map(parts, expected)), strict=True):
        if isinstance(theirs, Tensor):
            torch.testing.assert_close(ours, theirs)
        else:
            assert ours == theirs


def check(program: Any, make: Any, *, sizes: tuple[int, ...] = SIZES, **options: Any) -> Any:
    """Results, inputs afterwards and what is one object, in eager and as one graph."""
    compiled = stagefold.compile(program, fullgraph=True, **options)
    for size in sizes:
        runs = []
        for call in (program, compiled):
            inputs = make(size)
            result = call(*inputs)
            leaves = tree_leaves((result, inputs))
            runs.append((result, inputs, [[a is b for a in leaves] for b in leaves]))
        assert_same(runs[1], runs[0])
    return compiled


def check_gradients(program: Any, make: Any, *, leaves: bool = True) -> None:
    """And the gradients of inputs that require them. leaves: whether the inputs are leaves."""
    compiled = stagefold.compile(program, fullgraph=True)
    for size in SIZES:
        runs = []
        for call in (program, compiled):
            inputs = make(size)
            for given in inputs:
                if not leaves:
                    given.retain_grad()
            result = call(*inputs)
            loss = sum(leaf.sum() for leaf in tree_leaves(result) if leaf.requires_grad)
            loss.backward()
            runs.append((result, [given.grad for given in inputs]))
        assert_same(runs[1], runs[0])


# -- __torch_function__


def test_results_have_the_class():
    def named(size):
        return (matrix(size).as_subclass(Named),)

    check(lambda x: torch.sin(x) + 1, named)
    check(lambda x: (x.add_(1), torch.topk(x, 2), x.unbind()[0]), named)
    check(lambda x, y: (y * x, x.sum(), x.shape, x.view(-1), type(x + y)), lambda n: (*named(n), matrix(n)))


def test_classes_that_the_program_gives():
    check(lambda x: x.as_subclass(Named).cos(), lambda size: (matrix(size),))
    check(lambda x: (x * 2).as_subclass(Tensor), lambda size: (matrix(size).as_subclass(Named),))


def test_gradients_of_a_class():
    def make(size):
        return (matrix(size).as_subclass(Named).requires_grad_(),)

    check_gradients(lambda x: torch.sin(x) * x, make)


def test_a_class_sees_the_operations():
    def program(x, y):
        return torch.sin(x) + 1, x * y, y * x, x.relu(), x[0], -x, x.sum(0)

    def make(size):
        Counting.seen.clear()
        return matrix(size).as_subclass(Counting), matrix(size)

    compiled = stagefold.compile(program, fullgraph=True)
    expected = program(*make(6))
    names = [name for name in Counting.seen if name != "__get__"]
    found = compiled(*make(6))
    assert [name for name in Counting.seen if name != "__get__"] == names
    assert_same(found, expected)


# -- wrapper classes, without gradients


def test_inputs_and_results():
    check(lambda x: torch.sin(x) * 2 + x.sum(), lambda size: (two(size),))
    check(lambda x: (x.t(), x.view(-1)[2:], x @ x.t(), x.shape, x.dtype), lambda size: (two(size),))
    check(lambda x: x + 1, lambda size: (WrapperSubclass(matrix(size)),))
    check(lambda x: (x * 2 + 1).a, lambda size: (Doubles(matrix(size)),))
    check(lambda x: x * 2, lambda size: (TwoTensor(two(size), two(size)),))
    check(lambda x, y: (x + y, (x * 3).sum(1), x.sum()), lambda size: (masked(size), masked(size)))


def test_made_and_taken_apart_inside():
    check(lambda x: (TwoTensor(x, x + 1) * 2).a, lambda size: (matrix(size),))
    check(lambda x: (TwoTensor(x, x + 1), isinstance(TwoTensor(x, x), TwoTensor)), lambda size: (matrix(size),))
    check(lambda x: (x.a + x.b, x.get_elem_a(), x.a is x.a, type(x * 2)), lambda size: (two(size),))
    check(lambda x: Int8Weight.from_float(x), lambda size: (matrix(size),))


@pytest.mark.parametrize(
    ("wrap", "make"),
    [
        (Int8Weight.from_float, matrix),
        (Affine.from_float, matrix),
        (Float8Weight.from_float, matrix),
        (lambda weight: Int4Weight.from_float(weight, 0.25), matrix),
        (lambda weight: TwoTensor(weight, weight * 2), two),
    ],
    ids=["int8", "affine", "float8", "int4", "two"],
)
def test_weights(wrap, make):
    check(linear(wrap), lambda size: (make(size),))


def test_writes_reach_the_inner_tensors():
    def program(x, y):
        x.add_(y)
        x.mul_(2)
        return x, x.a + 1

    check(program, lambda size: (two(size), two(size)))
    check(lambda x: x.a.zero_(), lambda size: (two(size),))


def test_writes_are_counted():
    def program(x, y):
        x.add_(y)
        x.view(-1).mul_(2)
        return x.sum()

    versions = []
    for call in (program, stagefold.compile(program, fullgraph=True)):
        inputs = two(6), two(6)
        call(*inputs)
        versions.append([x._version for x in inputs])
    assert versions[1] == versions[0]


def test_results_that_are_inputs_or_views_of_them():
    check(lambda x: (x, x.a, x), lambda size: (two(size),))
    x = two(6)
    view = stagefold.compile(lambda x: x.view(-1), fullgraph=True)(x)
    view.a.zero_()
    assert not x.a.any()
    assert x.b.any()


def test_what_the_class_keeps_is_guarded():
    layer = linear(lambda weight: Int4Weight.from_float(weight, 0.25))
    compiled = stagefold.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(matrix(6)), layer(matrix(6)))
    layer.weight.scale = 0.5
    torch.testing.assert_close(compiled(matrix(6)), layer(matrix(6)))
    layer.weight = nn.Parameter(Int8Weight.from_float(matrix(4)), requires_grad=False)
    torch.testing.assert_close(compiled(matrix(6)), layer(matrix(6)))
    layer.weight = nn.Parameter(matrix(4), requires_grad=False)
    torch.testing.assert_close(compiled(matrix(6)), layer(matrix(6)))


# -- gradients


KINDS = [Int8Weight.from_float, Affine.from_float, Float8Weight.from_float]


@pytest.mark.parametrize("wrap", KINDS, ids=["int8", "affine", "float8"])
def test_gradients_through_weights_without(wrap):
    layer = linear(wrap)
    check_gradients(lambda x: torch.relu(layer(x)) * 2, lambda size: (matrix(size).requires_grad_(),))


def test_gradients_of_wrappers():
    def make(size):
        return (two(size).requires_grad_(),)

    check_gradients(lambda x: torch.sin(x) * x, make)
    check_gradients(lambda x: (x @ x.t()).relu().sum(1) + x[:, 0], make)
    check_gradients(lambda x, y: x * y, lambda size: (two(size).requires_grad_(), matrix(size)))
    check_gradients(lambda x: nn.functional.layer_norm(x, (8,)).softmax(-1), make)
    check_gradients(lambda x: x.sin() * 2, lambda size: (two(size).requires_grad_() * 3,), leaves=False)


def with_dropout(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.5)


def without_gradients_between(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 3
    return x * y


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.t()


MORE = {
    "several results": lambda x: [part * 2 for part in x.chunk(2, 1)],
    "results that are no floats": lambda x: (torch.max(x.sin(), 1), x > 0),
    "another dtype": lambda x: x.to(torch.bfloat16) * 2,
    "transposed": lambda x: x.sin().t(),
    "detached": lambda x: x * x.detach(),
    "inner tensors": lambda x: (x.a * 2, x * 2),
    "random numbers": with_dropout,
    "no_grad": without_gradients_between,
    "autocast": under_autocast,
    "written": lambda x: (x * 2).add_(1).mul_(x),
    "written through a view": lambda x: ((y := x * 2), y.view(-1).add_(1), y * 3),
    "views": lambda x: (x.t(), x.view(-1), x * 2),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(lambda y: y.sin() * 2, x, use_reentrant=False),
}


@pytest.mark.parametrize("name", MORE)
def test_gradients_of(name):
    runs = []
    for call in (MORE[name], stagefold.compile(MORE[name], fullgraph=True)):
        torch.manual_seed(0)
        x = two(6).requires_grad_()
        result = call(x)
        sum(leaf.sum() for leaf in tree_leaves(result) if leaf.requires_grad).backward()
        runs.append((result, x.grad))
    assert_same(runs[1], runs[0])


def test_a_plain_tensor_whose_gradient_is_a_wrapper():
    layer = linear(lambda weight: TwoTensor(weight, weight * 2))
    layer.bias.requires_grad_()
    compiled = stagefold.compile(layer, fullgraph=True)
    gradients = []
    for call in (layer, compiled):
        call(matrix(6)).square().sum().backward()
        gradients.append(layer.bias.grad)
        layer.bias.grad = None
    assert type(gradients[0]) is TwoTensor
    assert_same(gradients[1], gradients[0])


def test_gradients_of_gradients():
    def penalty(call, x):
        (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return x.grad

    def program(x):
        return x.sin() * x

    compiled = stagefold.compile(program, fullgraph=True)
    assert_same(penalty(compiled, two(6).requires_grad_()), penalty(program, two(6).requires_grad_()))


def trained(wrap: Any, make: Any, compile: Any) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    wrap(model)
    call, optimizer = compile(model), torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        loss = call(make(6 + step % 2)).square().mean()
        loss.backward()
        optimizer.step()
    return [loss, *model.parameters()]


def all_two(model: nn.Module) -> None:
    for layer in (model[0], model[2]):
        for name in ("weight", "bias"):
            plain = getattr(layer, name).detach()
            setattr(layer, name, nn.Parameter(TwoTensor(plain.clone(), plain * 2)))


def first_in_int8(model: nn.Module) -> None:
    model[0].weight = nn.Parameter(Affine.from_float(model[0].weight.detach()), requires_grad=False)


@pytest.mark.parametrize(("wrap", "make"), [(all_two, two), (first_in_int8, matrix)], ids=["two", "int8"])
def test_training(wrap, make):
    expected = trained(wrap, make, lambda model: model)
    assert_same(trained(wrap, make, lambda model: stagefold.compile(model, fullgraph=True)), expected)


def test_grad_modes():
    compiled = stagefold.compile(lambda x: x * 2, fullgraph=True)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert_same(compiled(two(6)), two(6) * 2)
    assert compiled(two(6).requires_grad_()).requires_grad


def test_behind_a_graph_break():
    def program(x):
        y = x * 2
        stagefold.graph_break()
        return y + 1, y

    compiled = stagefold.compile(program)
    gradients = []
    for call in (program, compiled):
        x = two(6).requires_grad_()
        sum(y.sum() for y in call(x)).backward()
        gradients.append(x.grad)
    assert_same(gradients[1], gradients[0])
    assert_same(compiled(two(9)), program(two(9)))


# -- what ends a graph


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


REFUSED = {
    "a gradient of another class": (
        lambda x, w: nn.functional.linear(x, w),
        lambda: (matrix(6), Float8Weight.from_float(matrix(4)).requires_grad_()),
    ),
    "a gradient of more than floats": (
        lambda x: torch.linalg.vector_norm(x),
        lambda: (Normed(matrix(6), matrix(6) > 0).requires_grad_(),),
    ),
    "more than tensors": (lambda x: x.a * 2, lambda: (Placed(matrix(6)),)),
    "more than floats": (lambda x: (x * x).sum(), lambda: (masked(6).requires_grad_(),)),
    "made of what requires grad": (lambda x: TwoTensor(x, x + 1) * 2, lambda: (matrix(6).requires_grad_(),)),
    "written": (lambda x: x.add_(1), lambda: (two(6).requires_grad_() * 3,)),
    "a function of the program": (lambda x: Twice.apply(x), lambda: (two(6).requires_grad_(),)),
    "unflattened as another class": (lambda x: x * 2, lambda: (Other(matrix(6)),)),
    "an attribute": (lambda x: setattr(x, "rate", 2) or x * 2, lambda: (two(6),)),
    "nested and strided": (
        lambda x: torch.sin(x) * 2,
        lambda: (torch.nested.nested_tensor([matrix(6), matrix(3)], layout=torch.strided),),
    ),
    "without __tensor_flatten__": (
        lambda x: torch.sin(x) * 2,
        lambda: (torch.masked.masked_tensor(matrix(6), matrix(6) > 0),),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_is_refused_runs_as_in_eager(name):
    program, make = REFUSED[name]
    with pytest.raises(stagefold.StageError, match=r"^BC00[238]"):
        stagefold.compile(program, fullgraph=True)(*make())
    found, expected = stagefold.compile(program)(*make()), program(*make())
    if name == "without __tensor_flatten__":
        found, expected = found.to_tensor(0), expected.to_tensor(0)
    elif name == "nested and strided":
        found, expected = found.values(), expected.values()
    assert_same(found, expected)


def test_gradients_of_other_classes_that_arrive():
    x = two(6).requires_grad_()
    with pytest.raises(stagefold.StageError, match="BC033"):
        stagefold.compile(lambda x: x * 2)(x).backward(torch.ones(6, 8))
    y = matrix(6).requires_grad_()
    plain = stagefold.compile(lambda y: y * 2)(y)
    with pytest.raises(stagefold.StageError, match="AG017"):
        (plain * two(6)).sum().backward()
