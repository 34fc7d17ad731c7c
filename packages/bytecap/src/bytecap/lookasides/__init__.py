"""What each known callable means: tables from the real object to a function on values.

A handler takes `(tracer, *args, **kwargs)` of Values and returns a Value. `PURE` lists callables that are simply
called at capture time when all their arguments are real objects.
"""

from __future__ import annotations

from bytecap.lookasides.builtin import BUILTIN
from bytecap.lookasides.classes import CLASS_STATEMENTS, CLASSES
from bytecap.lookasides.collectives import COLLECTIVES
from bytecap.lookasides.constructors import LEGACY, PARAMETERS
from bytecap.lookasides.flex_attention import FLEX_ATTENTION
from bytecap.lookasides.library import COPIES, LIBRARY, NATIVE
from bytecap.lookasides.numpy_calls import NUMPY_CALLS
from bytecap.lookasides.replaced_functions import DISTRIBUTIONS
from bytecap.lookasides.torch_functions import CHECKED_FUNCTIONS, KNOWN_CONTENTS, OPTIMIZERS, TORCH_FUNCTIONS
from bytecap.lookasides.torch_state import INDEX_MODE, KERNEL_CHOICES, REGIONS, TORCH_STATE
from bytecap.nodes.control_flow import CONTROL_FLOW
from bytecap.nodes.gradients import DUAL_LEVELS
from bytecap.nodes.streams import STREAM_CALLS
from bytecap.nodes.torch_function import TORCH_FUNCTION
from bytecap.nodes.transforms import TRANSFORMS
from bytecap.nodes.triton_kernels import KERNELS
from bytecap.objects.arrays.inference import INFERENCE
from bytecap.objects.arrays.tensor_hooks import TENSOR_HOOKS
from bytecap.objects.base import HANDLERS
from bytecap.objects.instances.random_streams import RANDOM

for table in (
    BUILTIN, CHECKED_FUNCTIONS, CLASS_STATEMENTS, CLASSES, COLLECTIVES, CONTROL_FLOW, COPIES, DISTRIBUTIONS,
    DUAL_LEVELS, FLEX_ATTENTION,
    INDEX_MODE, INFERENCE, NATIVE, KERNEL_CHOICES, KERNELS, KNOWN_CONTENTS, LEGACY, LIBRARY, OPTIMIZERS,
    PARAMETERS, RANDOM, REGIONS, STREAM_CALLS, TENSOR_HOOKS, TORCH_STATE, TORCH_FUNCTION, TORCH_FUNCTIONS, TRANSFORMS,
    NUMPY_CALLS,
):  # fmt: skip
    HANDLERS.update(table)
