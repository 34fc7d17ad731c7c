"""What the classes of `objects` ask of the rooms above them, which are built of these classes.

An object that is called runs a frame, and a frame is evaluated on objects: so evaluation is handed down, as
`tracer.evaluate`, which is this module, and not imported upward. Functions on `(tracer, ...)`; each is described where
it is defined.
"""

# ruff: noqa: F401

from __future__ import annotations

from bytecap.evaluator.calls import allocate, call_builtin, call_function, construct, inline, instantiate
from bytecap.evaluator.frame import Frame as frame
from bytecap.lookasides.library import reduce_ex
from bytecap.lookasides.torch_state import index_by_tensors
from bytecap.nodes.array_calls import call_on_arrays
from bytecap.nodes.autograd_functions import apply_function
from bytecap.nodes.torch_calls import call_torch, data_dependent_scalar, record, record_operator, to_host
from bytecap.nodes.torch_function import overridden_call, sees_calls
from bytecap.semantics.attributes import (
    bind,
    class_get_attribute,
    class_set_attribute,
    default_set_attribute,
    generic_get_attribute,
    instance_get_attribute,
    instance_set_attribute,
    special_method,
    super_attribute,
)
from bytecap.semantics.constant_folding import fold_call, fold_method
from bytecap.semantics.methods import call_object_method
from bytecap.semantics.operations import binary, compare, equal
from bytecap.semantics.string_conversion import open_percent, open_template, printable, repr_of
