"""Tensors without data. Where a program is compiled, bytecap and aotgrad pass these on as their own refusals."""

from __future__ import annotations

import torch

from absint import AbstractMode, AbstractTensor, contiguous, from_wire
from absint.functions import run_graph
from absint.symbolic import ShapeEnv, SizeFloat, Term, make_size
from absint.targets import resolve
from absint.wire import to_arg
from stagewire.expr import parse_expr
from stagewire.parser import parse_graph
from stagewire.types import contiguous as wire_type


def vector(size: int = 3) -> AbstractTensor:
    return AbstractTensor(contiguous((size,), torch.float32))


def AI001() -> None:
    with AbstractMode():
        vector().sum().item()


def AI002() -> None:
    vector() + 1


def AI003() -> None:
    @torch.library.custom_op("error_triggers::without_rule", mutates_args=())
    def without_rule(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with AbstractMode():
        without_rule(vector(6))


def AI004() -> None:
    with AbstractMode():
        vector(3) + vector(2)


def AI005() -> None:
    with AbstractMode():
        torch.add(vector(3), 1, out=vector(2))


def AI006() -> None:
    from_wire(wire_type("float32", (parse_expr("s0"),)))


def AI007() -> None:
    with AbstractMode():
        vector() + torch.eye(3).to_sparse()


def AI008() -> None:
    resolve("os.remove")


def AI009() -> None:
    to_arg(object())


def AI010() -> None:
    with AbstractMode():
        vector().sum(4)


def AI011() -> None:
    with AbstractMode():
        vector(1).expand(3).add_(1)


def AI012() -> None:
    env = ShapeEnv(strict=True)
    bool(make_size(env, env.create("s0", 8)) > 4)


def AI013() -> None:
    env = ShapeEnv()
    int(make_size(env, env.create("s0", 8, marked="x.shape[0]")))


def AI014() -> None:
    env = ShapeEnv()
    float(SizeFloat(env, Term("symbol", ("rate",))))


def AI015() -> None:
    with AbstractMode():
        vector().bitwise_not()


def AI016() -> None:
    graph = parse_graph("input %x: f32[4]\n%a: f32[2], %b: f32[2] = aten.neg.default(%x)\nreturn %a\n")
    run_graph(graph, (torch.ones(4),), {})
