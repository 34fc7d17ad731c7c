"""Tracing, partitioning, binding and running import and run none of torch's own compiler."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

import torch
import stagewire.grad

# What `import torch` brings along of these is there before us; nothing of it may run, and nothing more may come.
FORBIDDEN = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch._decomp", "torch._refs", "torch._prims",
             "torch._prims_common", "torch.export", "torch.fx.experimental", "sympy", "networkx", "hypothesis", "numpy")


class Tripwire:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(FORBIDDEN):
            raise AssertionError(f"{name} was imported")
        return None


from stagewire.codec import load
document = load(sys.argv[1], "capture")
sys.meta_path.insert(0, Tripwire())
CALLED = set()


def profile(frame, event, argument):
    if event == "call":
        CALLED.add(frame.f_code.co_filename.replace("\\\\", "/"))


sys.setprofile(profile)
from aotgrad import AotGrad, Options, bind_capture
grad = AotGrad().run(document, Options(gradient_order=1))
grad = AotGrad().run(document)
call = bind_capture(document)
inputs = [
    torch.ones(i.type.shape, dtype=getattr(torch, i.type.dtype), requires_grad=i.type.requires_grad)
    for i in grad.binding.inputs
]
output = call(*inputs)[0]
torch.autograd.Variable._execution_engine.run_backward(
    (output,), (torch.ones(output.shape),), False, False, (), allow_unreachable=True, accumulate_grad=True
)
assert any(t.grad is not None for t in inputs)
sys.setprofile(None)

FILES = ("torch/_dynamo", "torch/_inductor", "torch/_functorch", "torch/_decomp", "torch/_refs", "torch/_prims",
         "torch/fx/experimental", "torch/_subclasses", "torch/_meta_registrations", "torch/export")
bad = sorted(name for name in CALLED if any(part in name for part in FILES))
assert not bad, bad
assert not any(name == "torch._dynamo" or name.startswith("torch._inductor") for name in sys.modules)
print("pure")
"""


def test_the_stage_is_pure(tmp_path) -> None:
    import torch

    from aotgrad.testing import capture_by_torch_function
    from stagewire.codec import save

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(144, 5), torch.nn.LayerNorm(5), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Softmax(-1),
    )  # fmt: skip
    images = torch.randn(2, 3, 8, 8)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x), torch.ones(2, dtype=torch.long)).reshape(1)

    save(capture_by_torch_function(program, [images])[0], tmp_path / "capture.msgpack")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "capture.msgpack")],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "pure"
