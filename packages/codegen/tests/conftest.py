"""Where there is no CUDA device, Triton's kernels run in its interpreter, on CPU tensors.

The interpreter is chosen by an environment variable that Triton reads when it is imported and when a kernel is defined.
pytest reads this file before it collects any tests: those of other packages, beside these in one process, may import
Triton (torch's own tables of operators do).
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
