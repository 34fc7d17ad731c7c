"""Prims to fused loop kernels. Never imports torch.

`stage.LoopIR` is the stage; `builder` records kernels by hand; `lowering` turns prims into nests; `passes` and
`pipeline` fuse and schedule; `interpret` is the meaning, in numpy, of which `numpy_ops` has the ops.
"""

from loopir.stage import LoopIR, Options

__all__ = [
    "LoopIR",
    "Options",
]
