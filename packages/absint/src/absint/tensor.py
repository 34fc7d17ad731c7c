"""`AbstractTensor`: a tensor that is only its type, and that torch's own autograd works on.

It is a wrapper subclass. Its memory is the CPU's; C++ is told the true device if that is a CUDA device that is there,
so that autocast for CUDA works on it (a wrapper that claims another device than the build has aborts the process in the
autograd engine). The Python properties always tell the true device.
Every op on it is answered by the active `AbstractMode`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import torch
from torch.utils.weak import TensorWeakRef

from absint.errors import DataDependentError, NoActiveMode
from absint.meta import CPU, Meta, leaves
from absint.rules.shapes import wrap_dim
from absint.strides import contiguous_stride
from absint.symbolic.size import layout_key, surely_equal
from absint.torch_capabilities import TORCH
from stagewire.types import numel

_make_wrapper = TORCH.make_wrapper
# Bytes of the memory of a tensor with symbolic sizes: given, for C++ would compute them; large, for views lie inside.
_LARGE = 1 << 50
_NOTHING = (lambda: None), None


@cache
def _on_cuda(index: int) -> dict[str, Any]:
    """What makes a wrapper a CUDA tensor to C++, where the machine has this device."""
    if index >= torch.cuda.device_count():
        return {}
    return {"dispatch_device": True, "_extra_dispatch_keys": TORCH.key_set(TORCH.cuda_key)}


def _wrapper(cls: type, meta: Meta, requires_grad: bool) -> Any:
    """A wrapper of this type.

    To make one with symbols, C++ asks Python some twenty questions, and more later about the layout. To copy one it
    asks none, so that what has the type of another tensor becomes a copy of it (not where data decides sizes: there
    `bytecap.nodes.call_arguments` has to see what each call asks).
    """
    options = dict(dtype=meta.dtype, device=CPU, requires_grad=requires_grad)
    if meta.device.type == "cuda":
        options |= _on_cuda(meta.device.index or 0)
    shape, stride, offset = meta.shape, meta.stride, meta.storage_offset
    if meta.is_static:
        return _make_wrapper(cls, shape, strides=stride, storage_offset=offset, **options)
    numbers = (offset, *shape, *stride)
    key = (layout_key(numbers), meta.dtype, meta.device, torch.is_inference_mode_enabled())
    for number in numbers:
        if type(number) is not int:
            env = number.node.env
            break
    reference, of = env.wrappers.get(key, _NOTHING)
    known = reference()
    if known is None or known.meta is not of or env.unbacked:  # (a tensor may be retyped in place)
        row_major = contiguous_stride(shape)
        is_row_major = stride is row_major or all(map(surely_equal, stride, row_major))
        if is_row_major and type(offset) is int and offset == 0:
            made = _make_wrapper(cls, shape, storage_size=_LARGE, **options)  # C++ knows then that it is contiguous
        else:
            made = _make_wrapper(cls, shape, strides=stride, storage_offset=offset, storage_size=_LARGE, **options)
        env.wrappers[key] = TensorWeakRef(made), meta
        return made
    made = _make_wrapper(cls, (), **options)
    with TORCH.no_dispatch():
        made.data = known
    return made


class Storage:
    """Identity of memory: views share one record; `version` counts the writes through any of them.

    constant: the real tensor this memory was lifted from where its value is known, else None.
    deferred: makes that tensor, if it becomes known as soon as somebody asks; then whoever made it writes that down.
    bounds: the least and the greatest number in it, where these are known.
    is_inference: whether it was made in inference mode, if a tracer says so.
    """

    __slots__ = ("bounds", "constant", "deferred", "is_inference", "version")

    def __init__(self, constant: torch.Tensor | None = None) -> None:
        self.version = 0
        self.constant = constant
        self.deferred: Callable[[], torch.Tensor] | None = None
        self.bounds: tuple[float, float] | None = None
        self.is_inference: bool | None = None

    @property
    def is_deferred(self) -> bool:
        """Whether nobody asked yet for content that can be known."""
        return self.constant is None and self.deferred is not None

    def known(self) -> torch.Tensor | None:
        """The constant, made now if it was deferred."""
        if self.constant is None and self.deferred is not None:
            self.constant = self.deferred()
        return self.constant

    def write(self) -> None:
        """Count a write: of what is written, nothing is known any more."""
        self.version += 1
        self.constant = self.deferred = self.bounds = None


def _refused(what: str) -> Callable[..., NoReturn]:
    def method(self: AbstractTensor, *args: object, **kwargs: object) -> NoReturn:
        """Refused: an abstract tensor has no data."""
        raise DataDependentError(f"{what} needs the data of an abstract tensor {self.meta}")

    return method


class AbstractTensor(torch.Tensor):
    """A tensor of type `meta` on the memory `storage`.

    >>> from absint.meta import contiguous
    >>> x = AbstractTensor(contiguous((2, 3), torch.float32), requires_grad=True)
    >>> x.shape, x.requires_grad
    (torch.Size([2, 3]), True)
    """

    __slots__ = ("_storage", "meta")
    meta: Meta
    _storage: Storage | None

    @staticmethod
    def __new__(cls, meta: Meta, storage: Storage | None = None, *, requires_grad: bool = False) -> AbstractTensor:
        tensor = _wrapper(cls, meta, requires_grad)
        tensor.meta = meta
        tensor._storage = storage
        return tensor

    @property
    def storage_record(self) -> Storage:
        """The memory this tensor stands on, shared with its views."""
        storage = self._storage
        if storage is None:
            storage = self._storage = Storage()
        return storage

    __torch_function__ = TORCH.no_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].meta.device
        if any(not issubclass(each, AbstractTensor) for each in types):
            return NotImplemented  # a class that holds such tensors says what the op is
        raise NoActiveMode(f"{func} met an abstract tensor outside an AbstractMode")

    @property
    def device(self) -> torch.device:
        """The true device."""
        return self.meta.device

    @property
    def is_cuda(self) -> bool:
        """Is the true device a CUDA device."""
        return self.meta.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Is the true device the CPU."""
        return self.meta.device.type == "cpu"

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """The sizes; symbolic ones as `Size`, which compare like ints."""
        return torch.Size(self.meta.shape)

    def size(self, dim: int | None = None) -> Any:  # type: ignore[override]
        """All sizes, or one."""
        return self.shape if dim is None else self.meta.shape[wrap_dim(dim, self.meta.ndim)]

    def stride(self, dim: int | None = None) -> Any:  # type: ignore[override]
        """All strides, or one."""
        return self.meta.stride if dim is None else self.meta.stride[wrap_dim(dim, self.meta.ndim)]

    def numel(self) -> int:
        """The number of elements."""
        return numel(self.meta.shape)

    nelement = numel

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """Bytes of all elements."""
        return self.numel() * self.meta.dtype.itemsize

    def storage_offset(self) -> Any:
        """Where it begins in its memory, in elements."""
        return self.meta.storage_offset

    def get_device(self) -> int:
        """Index of the true device, -1 for the CPU."""
        return -1 if self.is_cpu else (self.meta.device.index or 0)

    def is_alias_of(self, other: AbstractTensor) -> bool:
        """Do both stand on one memory."""
        return self.storage_record is other.storage_record

    def __repr__(self, *, tensor_contents: object = None) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"AbstractTensor({str(self.meta)[5:-1]}{grad})"

    tolist = _refused("tolist()")
    numpy = _refused("numpy()")
    __array__ = _refused("conversion to numpy")
    data_ptr = _refused("data_ptr()")

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)


def tensors_in(tree: Any) -> list[AbstractTensor]:
    """The abstract tensors of a tree, flattened in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, AbstractTensor)]
