"""`AbstractMode` against eager: types, requires_grad, aliasing, in-place rules, refusals."""

import contextlib

import pytest
import torch
import torch.nn.functional as F

from absint import AbstractMode, AbstractTensor, DataDependentError, Meta, abstract_call, contiguous, from_tensor
from absint.errors import BadMutation, NoActiveMode, RefusedWrite, TypeRuleError, UnsupportedTensor


def abstract(tensor: torch.Tensor) -> AbstractTensor:
    return AbstractTensor(from_tensor(tensor), requires_grad=tensor.requires_grad)


def describe(value):
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.requires_grad
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    return value


def _flat(described):
    return described if isinstance(described, list) else [described]


X = torch.randn(2, 3, 8, requires_grad=True)
W = torch.randn(5, 8, requires_grad=True)
IMAGE = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
VOLUME = torch.randn(2, 3, 4, 4, 5).to(memory_format=torch.channels_last_3d).requires_grad_()
KERNEL = torch.randn(4, 3, 3, 3, requires_grad=True)

PROGRAMS = {
    "linear": (lambda x, w: F.linear(x, w).relu(), (X, W)),
    "einsum": (lambda x, w: torch.einsum("bsd,od->bso", x, w), (X, W)),
    "softmax": (lambda x: x.softmax(-1).transpose(0, 1).reshape(3, -1), (X,)),
    "attention": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True), (X,)),
    "cross_entropy": (
        lambda x, t: F.cross_entropy(x.flatten(0, 1), t, label_smoothing=0.1),
        (X, torch.zeros(6, dtype=torch.int64)),
    ),
    "conv": (lambda i, k: F.max_pool2d(F.conv2d(i, k, stride=2, padding=1), 2), (IMAGE, KERNEL)),
    "views": (lambda x: (x[:, None, 1:, ::2].expand(2, 4, 2, 4), *x.chunk(2, -1), *x.unbind(1)), (X,)),
    "index": (lambda x, i: x[i, :, i] + x[..., i].sum(0).t(), (X, torch.zeros(2, dtype=torch.int64))),
    "factories": (lambda x: torch.zeros(3, device=x.device) + torch.arange(3) + x.new_ones(3), (X,)),
    "interpolate": (lambda i: F.interpolate(i, scale_factor=2, mode="bilinear"), (IMAGE,)),
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), (X,)),
    "dropout": (lambda x: F.dropout(x, 0.5), (X,)),
    "lstm_cell": (
        lambda x, w: torch.lstm_cell(x[0], (x[0][:, :2], x[0][:, :2]), w, w[:, :2]),
        (X, torch.randn(8, 8)),
    ),
    "inplace": (lambda x: (x * 2).add_(1).mul_(x).clamp_(0), (X,)),
    "setitem": (lambda x: _setitem(x * 1), (X,)),
    "detach": (lambda x: (x.detach(), x.data), (X,)),
    "no_grad": (lambda x: _under_no_grad(x), (X,)),
    "cat": (lambda x: torch.cat([x, x.half().float()], 1), (X,)),
    "autocast": (lambda x, w: _autocast(x, w), (X, W)),
    "out": (lambda x: torch.add(x.detach(), 1, out=torch.empty(2, 3, 8)), (X,)),
    "numbers": (lambda x: x * torch.div(7, 2, rounding_mode="floor") + torch.add(2, 3.0), (X,)),
    "t_": (lambda w: (w * 1).t_(), (W,)),
    "volumes of one row": (
        lambda x: torch.isnan(x.as_strided((1, 3, 2, 1, 2), (3, 1, 6, 12, 3))),
        (X.detach().flatten(),),
    ),
    "pooled volumes": (
        lambda v: (F.avg_pool3d(v, 2), F.adaptive_avg_pool3d(v, 2), F.adaptive_max_pool3d(v, 2), F.max_pool3d(v, 2)),
        (VOLUME,),
    ),
    "padded volumes": (lambda v: (F.pad(v, [1] * 6, "reflect"), F.pad(v, [1] * 6, "replicate")), (VOLUME,)),
    "larger volumes": (
        lambda v: (F.interpolate(v, (2, 3, 4), mode="trilinear"), F.interpolate(v, (2, 3, 4))),
        (VOLUME,),
    ),
    "larger image": (lambda i: F.interpolate(i, (6, 5), mode="bicubic"), (IMAGE.detach().requires_grad_(),)),
    "noise of columns": (
        lambda w: torch.ops.aten.rrelu_with_noise_functional(w.detach().t(), w.detach().t(), 0.1, 0.5, True),
        (W,),
    ),
    "scaled alone": (lambda w: torch.addmv(w.detach()[0, :1], w.detach()[:0], w.detach()[0]), (W,)),
    "tolerance of each": (
        lambda w: torch.linalg.pinv(w.detach(), atol=w.detach().new_zeros(3), rtol=w.detach().new_zeros(1)),
        (W,),
    ),
    "power of columns": (lambda w: torch.pow(2.0, w.t()), (W,)),
    "rsub of columns": (lambda w: torch.rsub(w.t(), w.t()[:, None].transpose(0, 1)[0]), (W,)),
    "degrees of one": (lambda x: torch.deg2rad(x[:1, :1, 0]), (X,)),
    "dropout of columns": (lambda w: torch.native_dropout(w.t(), 0.5, True), (W,)),
    "copied view": (lambda w: torch.view_copy(w.t(), (-1,)), (W,)),
    "complex steps": (lambda w: torch.linspace(0, 1j, 3) * w[0, 0], (W,)),
    "loss of one": (lambda x, t: F.nll_loss(x[0, 0], t), (X, torch.zeros(1, dtype=torch.int64))),
    "loss of larger targets": (
        lambda x: torch.ops.aten.mse_loss(x[0].detach().t().contiguous().t().requires_grad_(), x.detach(), 0),
        (X,),
    ),
    "loss of rows": (lambda x: torch.ops.aten.mse_loss(x[0], x, 2), (X,)),
    "loss of halves": (lambda w: torch.ops.aten.huber_loss(w.detach().half(), w.detach(), 0), (W,)),
    "lists": (lambda w: torch.ops.aten._foreach_copy([w.detach().t()], [w.detach()[:1, :1]]), (W,)),
    "unsqueeze_": (lambda w: (w * 1).unsqueeze_(0).squeeze_(), (W,)),
}


def _setitem(x):
    x[0, 1:] = 3.0
    x[:, 0] += x[:, 1]
    return x


def _under_no_grad(x):
    with torch.no_grad():
        return x * 2


def _autocast(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, w), (x @ x.mT).softmax(-1)


@pytest.mark.parametrize("name", PROGRAMS)
def test_types_are_those_of_eager(name):
    program, operands = PROGRAMS[name]
    mode = AbstractMode()
    found = abstract_call(program, tuple(map(abstract, operands)), mode=mode)
    assert describe(found) == describe(program(*operands))
    assert not mode.fallback.counts


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("t_", "out", "detach", "no_grad")])
def test_types_under_inference_mode(name):
    program, operands = PROGRAMS[name]
    with torch.inference_mode():
        found = abstract_call(program, tuple(map(abstract, operands)), mode=AbstractMode())
        # Eager's views of ordinary tensors keep requires_grad there; abstract results never do.
        assert [d[:3] for d in _flat(describe(found))] == [d[:3] for d in _flat(describe(program(*operands)))]


@pytest.mark.parametrize("name", ["linear", "attention", "cross_entropy", "conv", "index", "inplace", "setitem"])
def test_gradients_have_the_types_of_eager(name):
    program, operands = PROGRAMS[name]
    leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in operands]
    program(*leaves).sum().backward()
    abstracts = list(map(abstract, leaves))
    with AbstractMode():
        program(*abstracts).sum().backward()
    for leaf, twin in zip(leaves, abstracts, strict=True):
        assert describe(leaf.grad) == describe(twin.grad)


def test_views_share_storage_and_versions():
    x = abstract(torch.randn(4, 4))
    with AbstractMode():
        view = x[1:].t()
        copy = view.contiguous()
        version = x.storage_record.version
        view.add_(1)
    assert view.is_alias_of(x)
    assert not copy.is_alias_of(x)
    assert x.storage_record.version == version + 1
    assert x._version == 1


def test_in_place_returns_the_tensor_itself():
    x = abstract(torch.randn(4))
    with AbstractMode():
        assert x.add_(1) is x


def test_batch_norm_writes_its_statistics():
    mean, var = abstract(torch.zeros(3)), abstract(torch.ones(3))
    with AbstractMode():
        F.batch_norm(abstract(IMAGE), mean, var, training=True)
    assert mean.storage_record.version == 1


REFUSED = {
    "dtype": lambda: (torch.zeros(3, dtype=torch.int64), lambda x: x.add_(0.5)),
    "shape": lambda: (torch.zeros(3), lambda x: x.add_((x * 1)[:, None])),
    "expanded": lambda: (torch.zeros(3, 1).expand(3, 2), lambda x: x.mul_(2)),
    "copy": lambda: (torch.zeros(1).expand(3), lambda x: x.copy_(x + 1)),
    "random": lambda: (torch.zeros(1).expand(3), lambda x: x.normal_()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_in_place_refuses_what_eager_refuses(name):
    tensor, write = REFUSED[name]()
    with pytest.raises(RuntimeError):
        write(tensor)
    with AbstractMode(), pytest.raises(TypeRuleError):
        write(abstract(tensor))


@pytest.mark.filterwarnings("ignore:Use of masked_fill_")
@pytest.mark.parametrize("write", [lambda x: x.fill_(1), lambda x: x.zero_(), lambda x: x.masked_fill_(x > 0, 1)])
def test_in_place_accepts_what_eager_accepts(write):
    tensor = torch.zeros(1).expand(3)
    write(tensor)
    with AbstractMode():
        assert write(abstract(tensor)).shape == (3,)


@pytest.mark.parametrize("name", ["softmax", "diag", "transpose_copy", "cumsum", "add", "sum"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64])
def test_out_of_another_dtype_is_refused_as_eager_does(name, dtype):
    write = {
        "softmax": lambda x, out: torch.softmax(x, 0, out=out),
        "diag": lambda x, out: torch.diag(x, out=out),
        "transpose_copy": lambda x, out: torch.transpose_copy(x, 0, 1, out=out),
        "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
        "add": lambda x, out: torch.add(x, 1, out=out),
        "sum": lambda x, out: torch.sum(x, 0, keepdim=True, out=out),
    }[name]
    shape = {"diag": (3,), "sum": (1, 3)}.get(name, (3, 3))
    x, out = torch.ones(3, 3), torch.empty(shape, dtype=dtype)
    refusals = []
    with AbstractMode():
        types = abstract(x), abstract(out)
    for operands, mode in (((x, out), contextlib.nullcontext()), (types, AbstractMode())):
        try:
            with mode:
                assert write(*operands).dtype is dtype
        except RuntimeError as error:
            refusals.append(str(error))
    assert len(refusals) != 1
    assert not refusals or refusals[0].splitlines()[0] in refusals[1]


def test_a_step_that_is_cut_off_to_nothing_is_refused():
    with pytest.raises(ValueError, match="step must be nonzero"):
        torch.arange(0, 5, 0.5, dtype=torch.int64)
    with AbstractMode(), pytest.raises(TypeRuleError, match="step must be nonzero"):
        torch.arange(0, 5, 0.5, dtype=torch.int64)


def test_out_of_another_shape_is_refused():
    # Eager resizes it, which no abstract tensor can.
    with AbstractMode(), pytest.raises(BadMutation) as caught:
        torch.add(abstract(torch.zeros(3)), 1, out=abstract(torch.zeros(2)))
    assert not isinstance(caught.value, RuntimeError)


def test_shape_errors_are_runtime_errors_too():
    with AbstractMode(), pytest.raises(RuntimeError, match="must match") as caught:
        abstract(torch.zeros(3)) + abstract(torch.zeros(2))
    assert isinstance(caught.value, TypeRuleError)
    with AbstractMode(), pytest.raises(IndexError):
        abstract(torch.zeros(3)).sum(4)


@pytest.mark.parametrize(
    "request_data",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: int(x.sum()),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x),
        lambda x: torch.unique(x),
        lambda x: x.repeat_interleave(x.long()),
        lambda x: x.masked_select(x > 0),
    ],
)
def test_data_is_refused(request_data):
    with AbstractMode(), pytest.raises(DataDependentError):
        request_data(abstract(torch.zeros(3)))


def test_constants_made_by_the_program_keep_their_value():
    with AbstractMode():
        assert torch.tensor(3).item() == 3
        changed = torch.tensor(3).add_(1)
        with pytest.raises(DataDependentError):
            changed.item()


def test_elements_of_constants_keep_their_value():
    with AbstractMode() as mode:
        table = torch.tensor([[1, 2], [3, 4]])
        assert table[1, 0].item() == 3
        assert table.t()[0].flip(0).shape == (2,)
        assert table[1].detach()[-1].item() == 4
        columns = mode.content_of(table.t())
        for unknown in (table[1, 0] + 1, table.view(torch.float64)[0, 0], torch.tensor([1 + 2j])[0].conj()):
            with pytest.raises(DataDependentError):
                unknown.item()
        row = table[0]
        table[1, 1] = 5
        with pytest.raises(DataDependentError):
            row[0].item()
    assert columns.tolist() == [[1, 3], [2, 4]]


def test_outside_the_mode_is_an_error():
    with pytest.raises(NoActiveMode):
        abstract(torch.zeros(3)) + 1


def test_real_tensors_are_lifted_once_and_share_storage():
    real = torch.randn(4, 4)
    mode = AbstractMode()
    with mode:
        result = abstract(torch.randn(4, 4)) + real
    assert type(result) is AbstractTensor
    assert mode.lift(real) is mode.lift(real)
    assert mode.lift(real[1:]).is_alias_of(mode.lift(real))


def test_sparse_tensors_are_refused():
    sparse = torch.eye(2).to_sparse()
    with AbstractMode() as mode:
        with pytest.raises(UnsupportedTensor):
            mode.lift(sparse)
        with pytest.raises(UnsupportedTensor):
            abstract(torch.eye(2)).to_sparse()


def test_true_device_is_told_and_kept():
    cuda = torch.device("cuda", 0)
    x = AbstractTensor(contiguous((2, 3), torch.float32, cuda), requires_grad=True)
    with AbstractMode():
        y = (x @ x.t()).relu().sum()
        y.backward()
    assert x.device == y.device == x.grad.device == cuda
    assert (y.is_cuda, y.is_cpu, y.get_device()) == (True, False, 0)


@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True)])
def test_the_backward_of_rms_norm_which_only_a_gpu_has(mask):
    """However large the operands are: no other kernel could be asked for the types."""
    cuda = torch.device("cuda", 0)
    x, grad = (AbstractTensor(Meta((8192, 16384), (1, 8192), torch.bfloat16, cuda)) for _ in range(2))
    rstd = AbstractTensor(contiguous((8192, 1), torch.float32, cuda))
    weight = AbstractTensor(contiguous((16384,), torch.float32, cuda))
    with AbstractMode():
        found = torch.ops.aten._fused_rms_norm_backward(grad, x, [16384], rstd, weight, mask)
    kinds = [((8192, 16384), (16384, 1), torch.bfloat16, False), ((16384,), (1,), torch.float32, False)]
    assert [None if one is None else describe(one) for one in found] == [
        kind if wanted else None for kind, wanted in zip(kinds, mask, strict=True)
    ]


def test_mixed_devices_are_refused_except_scalars():
    x = AbstractTensor(contiguous((2,), torch.float32, torch.device("cuda", 0)))
    with AbstractMode():
        assert (x * abstract(torch.tensor(2.0))).is_cuda
        with pytest.raises(TypeRuleError, match="operands on"):
            x * abstract(torch.zeros(2))


def test_subclass_hook_sees_every_op():
    class Recorder(AbstractMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def on_op(self, func, args, kwargs):
            self.names.append(str(func))
            return super().on_op(func, args, kwargs)

    mode = Recorder()
    abstract_call(F.linear, (abstract(torch.ones(2, 3)), abstract(torch.ones(4, 3))), mode=mode)
    assert mode.names == ["aten.t.default", "aten.mm.default"]


def test_modules_and_parameters():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.GELU())
    with AbstractMode():
        out = module(abstract(torch.randn(2, 4)))
        parameter = torch.nn.Parameter(abstract(torch.randn(2)))
    assert (out.requires_grad, out.shape) == (True, (2, 4))
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.requires_grad


def test_composite_code_that_reads_data_is_refused():
    with pytest.raises(DataDependentError, match="reads the data"):
        abstract_call(torch.tensor_split, (abstract(X), abstract(torch.tensor([1, 2]))), mode=AbstractMode())


def test_bytes_of_all_elements():
    assert abstract(torch.zeros(3, 4, dtype=torch.int16)).nbytes == 24


def test_a_view_of_repeated_elements_may_be_copied_onto_itself():
    """ATen returns before it looks at the strides; any other source is refused."""

    def onto_itself(x):
        return x.expand(3, 4).copy_(x.expand(3, 4))

    assert onto_itself(torch.ones(1, 4)).shape == (3, 4)
    x = abstract(torch.ones(1, 4))
    with AbstractMode():
        assert onto_itself(x).shape == (3, 4)
        with pytest.raises(RefusedWrite, match="one memory location"):
            x.expand(3, 4).copy_(x)


def test_hooks_on_saved_tensors_wait_for_real_ones():
    seen: list[torch.Tensor] = []
    x, real = abstract(X), torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(t), t)[1], lambda t: t):
        with AbstractMode() as mode:
            abstract_call(torch.exp, (x,), mode=mode)
            x.sin()
        assert not seen
        real.sin()
    assert len(seen) == 1
