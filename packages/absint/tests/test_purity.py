"""Tracing imports and runs none of torch's own compiler.

What would: a TorchDispatchMode whose `__torch_dispatch__` torch wraps; `torch.autograd.grad` with tangents; a
`torch._check` in a rule; a step of an optimizer through its wrapper. The program below goes past each of them.
"""

import subprocess
import sys

PROGRAM = """
import sys

FORBIDDEN = ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "sympy")


class Tripwire:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(FORBIDDEN):
            raise AssertionError(f"{name} was imported")
        return None


import torch
import stagewire.types

sys.meta_path.insert(0, Tripwire())
from absint import AbstractMode, AbstractTensor, Meta, contiguous
from absint.symbolic import ShapeEnv, make_size
from absint.targets import resolve, target_name
from absint.wire import to_arg

CALLED = set()


def profile(frame, event, argument):
    if event == "call":
        CALLED.add(frame.f_code.co_filename.replace("\\\\", "/"))


model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)
)
images = AbstractTensor(contiguous((2, 3, 8, 8), torch.float32))
labels = AbstractTensor(contiguous((2,), torch.int64))
sys.setprofile(profile)
with AbstractMode():
    loss = torch.nn.functional.cross_entropy(model(images), labels) + torch.nn.functional.gelu(images).sum()
    loss.backward()
    try:
        loss.item()
    except Exception as error:
        assert error.code == "AI001"


class Tracer(AbstractMode):
    def on_op(self, func, args, kwargs):
        return super().on_op(func, args, kwargs)


weight = AbstractTensor(contiguous((4, 4), torch.float32), requires_grad=True)
with Tracer():
    out = torch.stack((weight @ weight.mT, weight[:, :1] + weight)).reshape(4, -1)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        out = torch.where(out > 0, out, 0.0).softmax(-1)
    # With tangents: the engine itself, because torch.autograd.grad imports symbolic_shapes for them.
    tangent = AbstractTensor(contiguous(tuple(out.shape), torch.float32))
    grads = torch.autograd.Variable._execution_engine.run_backward(
        (out,), (tangent,), False, False, (weight,), allow_unreachable=True, accumulate_grad=False)
    assert grads[0].shape == weight.shape
    # The arithmetic of an optimizer's step, past the wrapper that imports torch._dynamo.
    with torch.no_grad():
        sys.modules["torch.optim.sgd"]._single_tensor_sgd(
            [weight], list(grads), [None], grad_scale=None, found_inf=None, weight_decay=0.1, momentum=0.9, lr=0.1,
            dampening=0.0, nesterov=True, maximize=False, has_sparse_grad=False)
    assert weight.storage_record.version == 1
    for bad in (lambda: weight.expand(2), lambda: weight.view(3, -1), lambda: torch.cat((weight, out[0]))):
        try:
            bad()
        except RuntimeError as error:
            assert error.code == "AI004", error
        else:
            raise AssertionError("accepted")
sizes = ShapeEnv()
batch = make_size(sizes, sizes.create("s0", 4))
rows = AbstractTensor(Meta((batch, 4), (4, 1), torch.float32), requires_grad=True)
with AbstractMode():
    heads = rows.view(batch, 2, 2).transpose(0, 1)
    scores = torch.nn.functional.layer_norm((heads @ heads.mT).softmax(-1), (batch,)).flatten()[: batch * batch]
    (scores.mean() + torch.arange(batch).sum()).backward()
assert resolve(target_name(torch.add)) is torch.add and to_arg(1.5) == 1.5
sys.setprofile(None)

OURS = ("torch/_dynamo", "torch/_inductor", "torch/_functorch", "torch/_decomp", "torch/_refs", "torch/_prims",
        "torch/fx/experimental", "torch/_subclasses", "torch/_meta_registrations", "torch/export")
bad = sorted(name for name in CALLED if any(part in name for part in OURS))
assert not bad, bad
assert "torch._dynamo" not in sys.modules
assert "torch.fx.experimental.symbolic_shapes" not in sys.modules
print("pure")
"""


def test_tracing_is_pure():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "pure"
