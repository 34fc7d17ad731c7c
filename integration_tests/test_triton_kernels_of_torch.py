"""The Triton kernels of torch.testing._internal.triton_utils in programs, compiled whole and compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stagefold

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="torch defines these kernels on machines with a GPU alone"
    ),
]
kernels = pytest.importorskip("torch.testing._internal.triton_utils", reason="it imports triton and expecttest")
Program = Callable[[Tensor, Tensor], Any]


def grid(count: int) -> Callable[[dict[str, int]], tuple[int]]:
    """A program for each block."""
    return lambda meta: (-(-count // meta["BLOCK_SIZE"]),)


def launched(kernel: Any, out: Tensor, *args: Any, **options: Any) -> Tensor:
    """`out`, into which a kernel wrote that takes it and its number of elements behind `args`."""
    count = out.numel()
    kernel[grid(count)](*args, out, count, **options)
    return out


def of_two(name: str, **options: Any) -> Program:
    """A kernel of two operands between pointwise calls."""
    kernel = getattr(kernels, name)
    return lambda x, y: launched(kernel, torch.empty_like(x), x * 2, y, **options).sin() + 1


def of_one(name: str, **options: Any) -> Program:
    """A kernel of one operand between pointwise calls."""
    kernel = getattr(kernels, name)
    return lambda x, y: launched(kernel, torch.empty_like(x), x + y, **options) * 3


def atomic(x: Tensor, y: Tensor) -> Tensor:
    out = launched(kernels.atomic_add_kernel, torch.zeros_like(x), x * 1, y, BLOCK_SIZE=16)
    return launched(kernels.atomic_add_kernel, out, x, y, BLOCK_SIZE=16)


def optional(x: Tensor, y: Tensor) -> Tensor:
    two = launched(kernels.add_kernel_with_optional_param, torch.empty_like(x), x, y, ARGS_PASSED="two", BLOCK_SIZE=16)
    one = launched(kernels.add_kernel_with_optional_param, two.clone(), x, None, ARGS_PASSED="one", BLOCK_SIZE=16)
    return one + two


def out_of_order(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first, second = torch.empty_like(x), torch.empty_like(x)
    count = x.numel()
    kernels.add_kernel_autotuned_weird_param_order[grid(count)](in_ptr0=x, in_ptr1=y, n_elements=count, out_ptr=first)
    kernels.add_kernel_out_of_order_fn2[grid(count)](x, first, count, second, BLOCK_SIZE=16)
    return first, second


def two_dimensions(x: Tensor, y: Tensor) -> Tensor:
    square = x.reshape(-1, 4)
    out, (rows, columns) = torch.zeros_like(square), square.shape
    blocks = lambda meta: (-(-rows // meta["BLOCK_SIZE_X"]), -(-columns // meta["BLOCK_SIZE_Y"]))  # noqa: E731
    kernels.add_kernel_2d_autotuned[blocks](square, square, out, rows, columns)
    return out


def scaled(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.add_kernel_with_scaling[grid(x.numel())](x, y, out, x.numel(), x.shape[0] / 7, BLOCK_SIZE=16)
    return out


def writes_an_input(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    part, copy = x[4:], y.clone()
    for tensor in (part, copy, copy):
        kernels.mul2_inplace_kernel[grid(tensor.numel())](tensor, tensor.numel(), BLOCK_SIZE=16)
    return x.sum(), part + copy[4:]


def calls_in_place(x: Tensor, y: Tensor) -> Tensor:
    options = {"BLOCK_SIZE": 16, "ACTIVATION": "mul2_inplace_kernel"}
    copy = x.clone()
    return launched(kernels.indirection_kernel, torch.empty_like(x), copy, **options) + copy


def boolean(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    found = tuple(torch.empty_like(x) for _ in range(2))
    for out, adds in zip(found, (True, False), strict=True):
        kernels.add_kernel_with_boolean_param[grid(x.numel())](x, y, out, x.numel(), adds, BLOCK_SIZE=16)
    return found


def described(x: Tensor, y: Tensor) -> Tensor:
    a = x.repeat(16)[:256].contiguous()
    out = torch.empty_like(a)
    operands = [kernels.create_tensor_descriptor_shim(each, [64]) for each in (a, a, out)]
    kernels.add_kernel_with_tma_1d_new_api[(4,)](*operands, BLOCK_SIZE=64)
    return out + 1


def in_a_branch(x: Tensor, y: Tensor) -> Tensor:
    def adds(x: Tensor, y: Tensor) -> Tensor:
        return launched(kernels.add_kernel, torch.empty_like(x), x, y, BLOCK_SIZE=16)

    return torch.cond(x.sum() > 0, adds, lambda x, y: x - y, (x, y))


class Sum(torch.autograd.Function):
    """A sum whose directions are kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return launched(kernels.add_kernel_autotuned, torch.empty_like(x), x, y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        twice = launched(kernels.mul2_kernel, torch.empty_like(gradient), gradient.contiguous(), BLOCK_SIZE=16)
        return twice, twice * 2


BLOCKS = {"BLOCK_SIZE": 16}
OF_TWO: dict[str, dict[str, Any]] = {
    "add_kernel": BLOCKS, "sub_kernel": BLOCKS, "add_kernel_with_block_ptr": BLOCKS, "add_kernel_with_import": BLOCKS,
    "cond_op_kernel": BLOCKS, "add_4_times_kernel": BLOCKS, "add_kernel_autotuned": {}, "sub_kernel_autotuned": {},
    "add_kernel_autotuned_with_unsupported_args": {},
}  # fmt: skip
OF_ONE: dict[str, dict[str, Any]] = {
    "mul2_kernel": BLOCKS, "kernel_with_block_ptr_2d": BLOCKS, "kernel_inline_asm_double_quotes": {"BLOCK_SIZE": 64},
    "kernel_inline_asm_single_quotes": {"BLOCK_SIZE": 64}, "indirection_kernel": {**BLOCKS, "ACTIVATION": "add_kernel"},
}  # fmt: skip
PROGRAMS: dict[str, Program] = {
    **{
        program.__name__: program
        for program in (
            atomic, optional, out_of_order, two_dimensions, scaled, writes_an_input, calls_in_place, boolean, described,
            in_a_branch,
        )
    },
    "autograd.Function": lambda x, y: Sum.apply(x.sin(), y * 2).cos(),
}  # fmt: skip


def program_of(name: str) -> Program:
    """A program by its name, or by that of its kernel."""
    if name in PROGRAMS:
        return PROGRAMS[name]
    return of_two(name, **OF_TWO[name]) if name in OF_TWO else of_one(name, **OF_ONE[name])


def run(program: Program, size: int, *, trains: bool) -> tuple[Any, list[Tensor | None]]:
    """The results, and the operands afterwards with their gradients."""
    generator = torch.Generator("cuda").manual_seed(size)
    x, y = (torch.rand(size, device="cuda", generator=generator, requires_grad=trains) for _ in range(2))
    result = program(x, y)
    if trains:
        result.sum().backward()
    return result, [x.detach(), y.detach(), x.grad, y.grad]


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"mode": "reduce-overhead"}], ids=str)
@pytest.mark.parametrize("name", [*OF_TWO, *OF_ONE, *PROGRAMS])
def test_agrees_with_eager(name: str, options: dict[str, Any]) -> None:
    program, trains = program_of(name), name == "autograd.Function"
    compiled = stagefold.compile(program, fullgraph=True, **options)
    for size in (64, 64, 64, 100, 128, 100):
        torch.testing.assert_close(run(compiled, size, trains=trains), run(program, size, trains=trains))
