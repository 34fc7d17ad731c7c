"""What models read of their modules, by every road to it; tensors that change under a closure.

Each case is (program, arguments, a change after compilation): the compiled program must follow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bytecap.testing.changes import Cases, Program, check_change

T = torch.arange(6.0).reshape(2, 3)
case = CASES = Cases()


def register(name: str, make: Callable[[], Program]) -> None:
    CASES[name] = make


def M(cls_body_fwd, init=None, change=None, args=(T,)):
    class Mod(nn.Module):
        def __init__(s):
            super().__init__()
            if init:
                init(s)

        forward = cls_body_fwd

    def c():
        torch.manual_seed(0)
        m = Mod()
        return m, args, lambda: change(m)

    return c


def lay(s):
    s.lin = nn.Linear(3, 3)
    s.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    s.md = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})


register("act_fn", M(lambda s, x: s.act(x), lambda s: setattr(s, "act", F.relu), lambda m: setattr(m, "act", F.gelu)))
register(
    "act_mod", M(lambda s, x: s.act(x), lambda s: setattr(s, "act", nn.ReLU()), lambda m: setattr(m, "act", nn.GELU()))
)
register(
    "act_torch",
    M(lambda s, x: s.act(x), lambda s: setattr(s, "act", torch.tanh), lambda m: setattr(m, "act", torch.sigmoid)),
)
register(
    "act_lambda",
    M(
        lambda s, x: s.act(x),
        lambda s: setattr(s, "act", lambda x: x * 2),
        lambda m: setattr(m, "act", lambda x: x * 3),
    ),
)
register(
    "act_partial",
    M(
        lambda s, x: s.act(x),
        lambda s: setattr(s, "act", functools.partial(F.leaky_relu, negative_slope=0.1)),
        lambda m: setattr(m, "act", functools.partial(F.leaky_relu, negative_slope=0.5)),
    ),
)
register(
    "md_order", M(lambda s, x: [x := f(x) for f in s.md.values()][-1], lay, lambda m: m.md.update({"a": m.md.pop("a")}))
)


def getdyn(s, x):
    for i in range(2):
        x = getattr(s, f"l{i}")(x)
    return x


def dyninit(s):
    s.l0 = nn.Linear(3, 3)
    s.l1 = nn.ReLU()


register("getattr_dyn", M(getdyn, dyninit, lambda m: setattr(m, "l1", nn.Tanh())))


def hasfoo(s, x):
    return x * 2 if hasattr(s, "foo") else x * 3


register("hasattr_plain", M(hasfoo, None, lambda m: setattr(m, "foo", 1)))
register("hasattr_buffer", M(hasfoo, None, lambda m: m.register_buffer("foo", torch.ones(1))))
register("hasattr_module", M(hasfoo, None, lambda m: m.add_module("foo", nn.ReLU())))
register("hasattr_param", M(hasfoo, None, lambda m: m.register_parameter("foo", None)))
register("hasattr_class", M(hasfoo, None, lambda m: setattr(type(m), "foo", 1)))
register(
    "getattr_none",
    M(
        lambda s, x: x * 2 if getattr(s, "foo", None) is None else x * 3,
        None,
        lambda m: m.register_buffer("foo", torch.ones(1)),
    ),
)
register(
    "isinst",
    M(lambda s, x: s.lin(x) if isinstance(s.lin, nn.Linear) else x * 3, lay, lambda m: setattr(m, "lin", nn.ReLU())),
)
register("len_layers", M(lambda s, x: x * len(s.layers), lay, lambda m: m.layers.append(nn.ReLU())))


def rev(s, x):
    for l in reversed(s.layers):
        x = l(x)
    return x


register("rev", M(rev, lay, lambda m: m.layers.insert(0, nn.ReLU())))


def sl(s, x):
    for l in s.layers[1:]:
        x = l(x)
    return x


register("slice", M(sl, lay, lambda m: m.layers.append(nn.ReLU())))


def chl(s, x):
    for n, _ in s.named_children():
        x = x + len(n)
    return x


register("named_children", M(chl, lay, lambda m: m.add_module("zz", nn.ReLU())))


def prm(s, x):
    for p in s.parameters():
        x = x + p.sum()
    return x


register("parameters", M(prm, lay, lambda m: m.register_parameter("zz", nn.Parameter(torch.ones(1)))))
register("parameters_deep", M(prm, lay, lambda m: m.layers[0].register_parameter("zz", nn.Parameter(torch.ones(1)))))


def bfs(s, x):
    for p in s.buffers():
        x = x + p.sum()
    return x


register("buffers", M(bfs, lay, lambda m: m.register_buffer("zz", torch.ones(1))))


def mds(s, x):
    return x * len(list(s.modules()))


register("modules", M(mds, lay, lambda m: m.layers[0].add_module("zz", nn.ReLU())))


def sdict(s, x):
    return x * len(s.state_dict())


register("state_dict", M(sdict, lay, lambda m: m.register_buffer("zz", torch.ones(1))))
register(
    "cls_attr", M(lambda s, x: x * type(s).k, lambda s: setattr(type(s), "k", 2), lambda m: setattr(type(m), "k", 9))
)
register(
    "cls_attr2",
    M(lambda s, x: x * s.__class__.k, lambda s: setattr(type(s), "k", 2), lambda m: setattr(type(m), "k", 9)),
)
register("dict_direct", M(lambda s, x: x * s.__dict__["k"], lambda s: setattr(s, "k", 2), lambda m: setattr(m, "k", 9)))
register("modules_direct", M(lambda s, x: s._modules["lin"](x), lay, lambda m: setattr(m, "lin", nn.ReLU())))
register(
    "params_direct",
    M(
        lambda s, x: x * s.lin._parameters["weight"],
        lay,
        lambda m: m.lin._parameters.__setitem__("weight", torch.ones(3, 3) * 5),
        args=(torch.ones(3, 3),),
    ),
)
register(
    "training_deep",
    M(lambda s, x: s.layers[0](x) * (2 if s.layers[0].training else 3), lay, lambda m: m.layers[0].eval()),
)
register(
    "training_nested_flag",
    M(lambda s, x: F.dropout(x, 0.999999, s.layers[1].training), lay, lambda m: m.layers[1].eval()),
)
register("drop_p", M(lambda s, x: s.d(x), lambda s: setattr(s, "d", nn.Dropout(0.0)), lambda m: setattr(m.d, "p", 1.0)))
register(
    "bn_momentum",
    M(
        lambda s, x: s.b(x),
        lambda s: setattr(s, "b", nn.BatchNorm1d(3, affine=False, track_running_stats=False)),
        lambda m: setattr(m.b, "eps", 10.0),
    ),
)
register(
    "ln_shape", M(lambda s, x: s.b(x), lambda s: setattr(s, "b", nn.LayerNorm(3)), lambda m: setattr(m.b, "eps", 10.0))
)
register(
    "conv_stride",
    M(
        lambda s, x: s.b(x),
        lambda s: setattr(s, "b", nn.Conv1d(1, 1, 2)),
        lambda m: setattr(m.b, "stride", (2,)),
        args=(torch.randn(1, 1, 8),),
    ),
)
register(
    "emb_padding",
    M(
        lambda s, x: s.b(x),
        lambda s: setattr(s, "b", nn.Embedding(9, 3)),
        lambda m: setattr(m.b, "weight", nn.Parameter(torch.ones(9, 3))),
        args=(torch.arange(3),),
    ),
)
register(
    "mha_heads",
    M(
        lambda s, x: s.b(x, x, x)[0],
        lambda s: setattr(s, "b", nn.MultiheadAttention(4, 2, batch_first=True)),
        lambda m: (setattr(m.b, "num_heads", 4), setattr(m.b, "head_dim", 1)),
        args=(torch.randn(1, 3, 4),),
    ),
)
register(
    "lstm",
    M(
        lambda s, x: s.b(x)[0],
        lambda s: setattr(s, "b", nn.LSTM(3, 4, batch_first=True)),
        lambda m: setattr(m.b, "bidirectional", False) or [p.data.mul_(2) for p in m.b.parameters()],
        args=(torch.randn(1, 3, 3),),
    ),
)
register(
    "lstm_replace",
    M(
        lambda s, x: s.b(x)[0],
        lambda s: setattr(s, "b", nn.LSTM(3, 4, batch_first=True)),
        lambda m: setattr(m, "b", nn.LSTM(3, 4, num_layers=2, batch_first=True)),
        args=(torch.randn(1, 3, 3),),
    ),
)
register(
    "enc_layer",
    M(
        lambda s, x: s.b(x),
        lambda s: setattr(s, "b", nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)),
        lambda m: setattr(m.b, "norm_first", True),
        args=(torch.randn(1, 3, 4),),
    ),
)
register(
    "enc_layer_eval",
    M(
        lambda s, x: s.b(x),
        lambda s: setattr(s, "b", nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)),
        lambda m: m.eval() and None,
        args=(torch.randn(1, 3, 4),),
    ),
)
register(
    "enc_layer_act",
    M(
        lambda s, x: s.b(x),
        lambda s: setattr(s, "b", nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)),
        lambda m: setattr(m.b, "activation", torch.tanh),
        args=(torch.randn(1, 3, 4),),
    ),
)


# tensors in closures
def tens(make, change, f=lambda x, t: x * t):
    def c():
        t = make()
        return (lambda x: f(x, t)), (T,), lambda: change(t)

    return c


register("t_set", tens(lambda: torch.ones(3), lambda t: t.set_(torch.ones(2, 3) * 3)))
register("t_resize", tens(lambda: torch.ones(3), lambda t: t.resize_(1).fill_(4)))
register(
    "t_t_", tens(lambda: torch.arange(6.0).reshape(3, 2).t(), lambda t: (t.t_(), t.t_(), t.copy_(torch.ones(2, 3))))
)
register("t_t2", tens(lambda: torch.arange(9.0).reshape(3, 3), lambda t: t.t_(), lambda x, t: x @ t))
register("t_requires", tens(lambda: torch.ones(3), lambda t: t.requires_grad_()))
register("t_data", tens(lambda: torch.ones(3), lambda t: setattr(t, "data", torch.ones(1) * 5)))
register(
    "t_class",
    tens(
        lambda: torch.ones(3),
        lambda t: setattr(
            t,
            "__class__",
            type(
                "S",
                (torch.Tensor,),
                {
                    "__torch_function__": classmethod(
                        lambda c, f, ty, a=(), k=None: torch.Tensor.__torch_function__.__func__(
                            torch.Tensor, f, ty, a, k or {}
                        )
                    )
                },
            ),
        ),
    ),
)
register("t_attr", tens(lambda: _with(torch.ones(3), foo=2), lambda t: setattr(t, "foo", 5), lambda x, t: x * t.foo))
register(
    "t_attr_del",
    tens(lambda: _with(torch.ones(3), foo=2), lambda t: delattr(t, "foo"), lambda x, t: x * getattr(t, "foo", 7)),
)
register(
    "t_attr_list", tens(lambda: _with(torch.ones(3), foo=[2]), lambda t: t.foo.append(5), lambda x, t: x * sum(t.foo))
)
register(
    "t_grad",
    tens(
        lambda: torch.ones(3, requires_grad=True),
        lambda t: t.sum().backward(),
        lambda x, t: x if t.grad is None else x * 5 + t.grad,
    ),
)
register("t_grad_val", tens(lambda: _wg(), lambda t: t.grad.mul_(3), lambda x, t: x * t.grad))
register(
    "t_grad_none",
    tens(lambda: _wg(), lambda t: setattr(t, "grad", None), lambda x, t: x if t.grad is None else x * t.grad),
)
register(
    "t_grad_shape",
    tens(
        lambda: _wg(),
        lambda t: setattr(t, "data", torch.ones(2, 3)) or setattr(t, "grad", torch.ones(2, 3) * 3),
        lambda x, t: x * t.grad,
    ),
)
register("t_detach_", tens(lambda: torch.ones(3, requires_grad=True) * 2, lambda t: t.detach_()))


def _with(t, **k):
    for a, b in k.items():
        setattr(t, a, b)
    return t


def _wg():
    t = torch.ones(3, requires_grad=True)
    t.grad = torch.ones(3) * 2
    return t


@pytest.mark.parametrize("name", CASES)
def test_change(name: str) -> None:
    check_change(CASES[name]())
