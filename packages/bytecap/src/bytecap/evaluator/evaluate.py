"""What the classes of `objects` ask of the rooms above them, which are built of these classes.

An object that is called runs a frame, and a frame is evaluated on objects: so evaluation is handed down, as
`tracer.evaluate`, and not imported upward.
"""

from __future__ import annotations

from bytecap.evaluator.calls import call_builtin, call_function, inline
from bytecap.evaluator.frame import Frame
from bytecap.evaluator.instantiate import allocate, construct, instantiate
from bytecap.lookasides.copies import reduce_ex
from bytecap.lookasides.index_mode import index_by_tensors
from bytecap.nodes.autograd_functions import apply_function
from bytecap.nodes.torch_calls import call_torch, data_dependent_scalar, record
from bytecap.semantics.attributes import (
    bind,
    class_get_attribute,
    class_set_attribute,
    default_set_attribute,
    generic_get_attribute,
    instance_delete_attribute,
    instance_get_attribute,
    instance_set_attribute,
    special_method,
    super_attribute,
)
from bytecap.semantics.constant_folding import fold_call, fold_method
from bytecap.semantics.methods import call_object_method
from bytecap.semantics.operations import binary, compare, equal
from bytecap.semantics.string_conversion import printable, repr_of


class Evaluate:
    """Functions on `(tracer, ...)`; each is described where it is defined."""

    generic_get_attribute = staticmethod(generic_get_attribute)
    instance_get_attribute = staticmethod(instance_get_attribute)
    instance_set_attribute = staticmethod(instance_set_attribute)
    instance_delete_attribute = staticmethod(instance_delete_attribute)
    class_get_attribute = staticmethod(class_get_attribute)
    class_set_attribute = staticmethod(class_set_attribute)
    super_attribute = staticmethod(super_attribute)
    default_set_attribute = staticmethod(default_set_attribute)
    special_method = staticmethod(special_method)
    bind = staticmethod(bind)
    equal = staticmethod(equal)
    binary = staticmethod(binary)
    compare = staticmethod(compare)
    call_object_method = staticmethod(call_object_method)
    printable = staticmethod(printable)
    repr_of = staticmethod(repr_of)
    fold_call = staticmethod(fold_call)
    fold_method = staticmethod(fold_method)
    call_function = staticmethod(call_function)
    call_builtin = staticmethod(call_builtin)
    inline = staticmethod(inline)
    instantiate = staticmethod(instantiate)
    construct = staticmethod(construct)
    allocate = staticmethod(allocate)
    frame = Frame
    call_torch = staticmethod(call_torch)
    reduce_ex = staticmethod(reduce_ex)
    record = staticmethod(record)
    data_dependent_scalar = staticmethod(data_dependent_scalar)
    apply_function = staticmethod(apply_function)
    index_by_tensors = staticmethod(index_by_tensors)
