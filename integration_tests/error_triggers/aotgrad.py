"""Gradients and mutations. What eager torch runs and this stage cannot take makes the program run plain; under
`fullgraph=True` it is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from msgspec.structs import replace
from torch.testing._internal.two_tensor import TwoTensor

import stagefold
from aotgrad import AotGrad, Partition, PartitionStage, cut
from aotgrad.interpret import interpret
from aotgrad.testing import capture_by_torch_function
from stagewire.capture import Capture, Symbol
from stagewire.parser import parse_document

X = torch.ones(3)
PARAMETER = torch.ones(3, requires_grad=True)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return stagefold.compile(function, fullgraph=True, options=options)


def one_call(call: str) -> Capture:
    """The document of one torch call on an input x of three elements."""
    return parse_document(f"""
        capture 1 {{
          code = Code(name="forward", file="model.py", first_line=10)
          inputs {{ %x: f32[3] grad = tensor x }}
          graph {{
            input %x: f32[3] grad
            {call}  # model.py:12 in forward
            return %y
          }}
        }}""")


@contextmanager
def operator(schema: str, function: Callable[..., Any], key: str = "CPU") -> Iterator[None]:
    """An operator of somebody else's library."""
    library = torch.library.Library("example", "FRAGMENT")
    library.impl(library.define(schema), function, key)
    yield
    del library


def AG001() -> None:
    AotGrad().run(one_call("%y: f32[3] grad = torch.exp(%x, 5)"))


def AG002() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.exp().add_(1)

    AotGrad().run(capture_by_torch_function(forward, [PARAMETER])[0])


def AG003() -> None:
    with operator("bump(Tensor(a!) x) -> Tensor", lambda x: x.add_(1)):
        AotGrad().run(one_call("%y: f32[3] = example.bump.default(%x)"))


def AG004() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.expand(2, 3)[0].add_(1)
        return y

    compiled(forward)(X)


def AG005() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        x.t_()
        return x * 2

    compiled(forward)(torch.ones(2, 3))


def AG006() -> None:
    with operator("scale(Tensor x) -> Tensor", lambda x: x * PARAMETER, "CompositeImplicitAutograd"):
        AotGrad().run(one_call("%y: f32[3] grad = example.scale.default(%x)"))


def AG007() -> None:
    compiled(lambda x: torch.zeros_like(x, requires_grad=True))(PARAMETER)


def AG008() -> None:
    document = one_call("%y: f32[3] = torch.exp(%x)")
    AotGrad().run(replace(document, symbols=(*document.symbols, Symbol("s0", None, None))))


def AG009() -> None:
    with operator("count(Tensor x) -> int", lambda x: 3):
        AotGrad().run(one_call("%y: f32[3] = example.count.default(%x)"))


def AG010() -> None:
    def noise(x: torch.Tensor) -> torch.Tensor:
        return x.clone().uniform_(generator=torch.Generator())

    with operator("noise(Tensor x) -> Tensor", noise, "CompositeImplicitAutograd"):
        AotGrad().run(one_call("%y: f32[3] grad = example.noise.default(%x)"))


def AG011() -> None:
    document = one_call("%y: f32[3] grad = torch.exp(%x)")
    cut(AotGrad().run(document), PartitionStage.Options(partitioner=lambda joint: Partition(("nowhere",))))


def AG012() -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    memory = torch.ones(6)
    document, inputs = capture_by_torch_function(forward, [memory[:4], memory[2:]])
    interpret(AotGrad().run(document), inputs)


def AG013() -> None:
    grad = AotGrad().run(one_call("%y: f32[3] grad = torch.exp(%x)"))
    (y,) = interpret(grad, [PARAMETER])
    torch.autograd.grad(y.sum(), PARAMETER, create_graph=True)


def AG014() -> None:
    stagefold.compile(torch.exp, options={"partition.partitioner": "best"})(PARAMETER)


def AG015() -> None:
    AotGrad().run(one_call("%y: f32[3] grad = torch.Tensor.retain_grad(%x)"))


def AG017() -> None:
    x = torch.ones(3, requires_grad=True)
    result = compiled(lambda x: x * 2)(x)
    (result * TwoTensor(X, X)).sum().backward()


def AG016() -> None:
    grad = AotGrad().run(one_call("%y: f32[2] grad = torch.Tensor.as_strided(%x, [2], [1], 1)"))
    interpret(grad, [torch.ones(8)[5:]])
