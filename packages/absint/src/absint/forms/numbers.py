"""Numbers, ranges, tensors and indices made of symbolic sizes.

math.sqrt(n / 2)       a float that is still computed of the size
torch.tensor([n, m])   stack of what `scalar_tensor` makes of each
linspace(a, b, n)      arange(n) * ((b - a) / (n - 1)) + a, from both ends towards the middle
x[n - 1, :]            x.select(0, n - 1)[:]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.meta import leaves
from absint.symbolic import NUMBERS, is_symbolic, make_float, unwrap
from absint.symbolic.floats import FUNCTIONS, as_float


def get_item(x: Any, index: Any) -> Any:
    """`x[index]`."""
    base, rest = _selected(x, index)
    return torch.Tensor.__getitem__(base, rest) if base is x or rest else base


def set_item(x: Any, index: Any, value: Any) -> None:
    """`x[index] = value`."""
    base, rest = _selected(x, index)
    torch.Tensor.__setitem__(base, rest if base is x or rest else ..., value)


def _selected(x: Any, index: Any) -> tuple[Any, Any]:
    """What symbolic numbers in the index select, and the rest of the index."""
    items = index if type(index) is tuple else (index,)
    places = [at for at, item in enumerate(items) if is_symbolic(item)]
    if not places or any(isinstance(item, (bool, list)) or _is_mask(item) for item in items):
        return x, index
    rank = x.dim()
    for at in reversed(places):
        x = x.select(dimension_of(rank, items, at), items[at])
    return x, tuple([item for at, item in enumerate(items) if at not in places])


def _is_mask(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)


def dimension_of(rank: int, index: tuple[Any, ...], at: int) -> int:
    """The dimension, of so many, that item `at` of an index selects from."""
    if any(item is Ellipsis for item in index[:at]):
        return rank - sum(map(_width, index[at:]))
    return sum(map(_width, index[:at]))


def _width(item: Any) -> int:
    """How many dimensions an item of an index takes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.dim() if _is_mask(item) else 1


def embedding_dense_backward(
    grad_output: Any, indices: Any, num_weights: Any, padding_idx: Any, scale_grad_by_freq: bool
) -> Any:
    """ATen's, called by the program itself: it skips an index that there is no weight of, and its gradient does not.
    The autograd engine's call needs no form, for the forward has refused such an index."""
    if not scale_grad_by_freq and not (torch.is_grad_enabled() and grad_output.requires_grad):
        has_weight = (indices >= 0) & (indices < num_weights)
        indices = torch.where(has_weight, indices, 0)
        grad_output = torch.where(has_weight.unsqueeze(-1), grad_output, 0)
    return torch.ops.aten.embedding_dense_backward.default(
        grad_output, indices, num_weights, padding_idx, scale_grad_by_freq
    )


def _of_sizes(name: str) -> Callable[[Any], Any]:
    """A function of the module `math`."""
    host = FUNCTIONS[name]

    def apply(number: Any) -> Any:
        if not _is_open(number):
            return host(number)
        number = as_float(number)
        return make_float(number.node.env, name, number)

    return apply


def _is_open(*values: Any) -> bool:
    return any(is_symbolic(value) or isinstance(value, torch.SymFloat) for value in values)


def item(self: Any) -> Any:
    """`torch.Tensor.item`: a float that the program was given from outside stays one."""
    return unwrap(self.item())


def _maker(make: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.tensor` or `torch.as_tensor`, of a number or of nested lists of numbers."""

    def form(data: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
        items = list(leaves(data))
        is_plain = any(type(item) is bool or not isinstance(item, NUMBERS) for item in items)
        if is_plain or any(rest.values()) or not _is_open(*items):
            return make(data, dtype=dtype, device=device, **rest)
        if dtype is None:
            has_floats = any(isinstance(item, (float, torch.SymFloat)) for item in items)
            dtype = torch.get_default_dtype() if has_floats else torch.int64
        return _stacked(data, dtype, device)

    return form


def new_tensor(self: Any, data: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    """`torch.Tensor.new_tensor`."""
    return _maker(self.new_tensor)(data, dtype=dtype or self.dtype, device=device or self.device, **rest)


def _stacked(part: Any, dtype: torch.dtype, device: Any) -> Any:
    if isinstance(part, (list, tuple)):
        return torch.stack([_stacked(item, dtype, device) for item in part])
    return torch.scalar_tensor(part, dtype=dtype, device=device)


def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> Any:
    """`torch.linspace` between numbers."""
    wanted = torch.get_default_dtype() if dtype is None else dtype
    is_plain = not isinstance(start, NUMBERS) or not isinstance(end, NUMBERS) or not wanted.is_floating_point
    if is_plain or any(rest.values()) or not _is_open(start, end, steps):
        return torch.linspace(start, end, steps, dtype=dtype, device=device, **rest)
    if steps == 1:
        return torch.full((1,), start, dtype=wanted, device=device)
    inner = torch.float32 if wanted in (torch.float16, torch.bfloat16) else wanted
    index = torch.arange(steps, dtype=inner, device=device)
    step = (end - start) / (steps - 1)
    rising, falling = index * step + start, end - (steps - 1 - index) * step
    return torch.where(index < steps // 2, rising, falling).to(wanted)


def logspace(start: Any, end: Any, steps: Any, base: Any = 10.0, *, dtype: Any = None, **rest: Any) -> Any:
    """`torch.logspace` between numbers."""
    is_plain = not isinstance(start, NUMBERS) or not isinstance(end, NUMBERS) or not isinstance(base, NUMBERS)
    if is_plain or not _is_open(start, end, steps):
        return torch.logspace(start, end, steps, base, dtype=dtype, **rest)
    return torch.pow(float(base), linspace(start, end, steps, dtype=dtype, **rest))


def one_hot(input: Any, num_classes: Any = -1) -> Any:
    """`torch.nn.functional.one_hot`: a comparison with each class. Of a class that there is none of, `gather` raises
    (ATen looks at the data of tensors that have some; of others its one is a row of zeros)."""
    if input.dtype is not torch.int64 or (not is_symbolic(num_classes) and num_classes < 0):
        return torch.nn.functional.one_hot(input, num_classes)  # which refuses it, or leaves it to the data
    if not is_symbolic(num_classes) and num_classes == 0:
        raise TypeRuleError("one_hot: there are no classes")
    classes = torch.ops.aten.arange.default(num_classes, device=input.device)
    chosen = classes.gather(0, input.reshape(-1)).reshape(input.shape)
    return (chosen.unsqueeze(-1) == classes).to(torch.int64)


def kron(self: Any, other: Any) -> Any:
    """`torch.kron`."""
    if not _is_open(*self.shape, *other.shape):
        return torch.kron(self, other)
    rank = max(self.dim(), other.dim())
    left, right = ([*[1] * (rank - one.dim()), *one.shape] for one in (self, other))
    first = self.reshape([size for pair in zip(left, [1] * rank, strict=True) for size in pair])
    second = other.reshape([size for pair in zip([1] * rank, right, strict=True) for size in pair])
    return (first * second).reshape([a * b for a, b in zip(left, right, strict=True)])


def take_along_dim(input: Any, indices: Any, dim: Any = None) -> Any:
    """`torch.take_along_dim`."""
    fits = indices.dtype is torch.int64 and (
        dim is None or (input.dim() == indices.dim() and -input.dim() <= dim < input.dim())
    )
    if not fits or not _is_open(*input.shape, *indices.shape):
        return torch.take_along_dim(input, indices, dim)
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    dim = dim % input.dim()
    shapes = [list(one.shape) for one in (input, indices)]
    for shape in shapes:
        shape[dim] = 1
    common = torch.broadcast_shapes(*shapes)
    wide = [one.expand([*common[:dim], one.shape[dim], *common[dim + 1 :]]) for one in (input, indices)]
    return wide[0].gather(dim, wide[1].remainder(input.shape[dim]))


NUMBER_FORMS: dict[str, Callable[..., Any]] = {
    "torch.sym_float": as_float,
    **{f"math.{name}": _of_sizes(name) for name in FUNCTIONS},
    "torch.Tensor.item": item,
    "torch.tensor": _maker(torch.tensor),
    "torch.as_tensor": _maker(torch.as_tensor),  # which keeps the memory and the gradient of a tensor
    "torch.Tensor.new_tensor": new_tensor,
    "torch.linspace": linspace,
    "torch.logspace": logspace,
    **dict.fromkeys(("torch.nn.functional.one_hot", "torch.ops.aten.one_hot", "aten.one_hot.default"), one_hot),
    "torch.kron": kron,
    "torch.take_along_dim": take_along_dim,
    "torch.Tensor.take_along_dim": take_along_dim,
    "torch.Tensor.__getitem__": get_item,
    "torch.Tensor.__setitem__": set_item,
    "torch.ops.aten.embedding_dense_backward": embedding_dense_backward,
    "aten.embedding_dense_backward.default": embedding_dense_backward,
}
