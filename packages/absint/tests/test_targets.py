"""Names of callables and back."""

import math
import operator
import subprocess
import sys
from types import BuiltinFunctionType

import pytest
import torch

from absint.errors import UnknownTarget
from absint.targets import resolve, target_name

NAMESPACES = (torch.nn.functional, torch.special, torch.linalg, torch.fft, torch.Tensor, torch.functional, torch)

# Functions that torch lets be overridden, and that no document calls.
UNLISTED = """
    autocast from_file handle_torch_function __array__ __array_wrap__ __deepcopy__ __dlpack__ __dlpack_device__
    __format__ __hash__ __reduce_ex__ __repr__ __setstate__ _clear_non_serializable_cached_data _typed_storage apply_
    data_ptr map2_ map_ module_load numpy register_hook register_post_accumulate_grad_hook share_memory_ storage
    storage_type untyped_storage
"""
REFUSED = """
    torch.os.system torch.builtins.exec torch.sys.exit torch._sources.inspect.os.system torch.importlib.import_module
    torch.nn.functional.importlib.import_module torch.load torch.save torch.hub.load torch.jit.load torch.jit.script
    torch.compile torch.ops.load_library torch.classes.load_library torch.utils.cpp_extension.load torch.from_file
    torch._utils._import_dotted_name torch._import_dotted_name torch._tensor._rebuild_from_type_v2 torch.__getattr__
    torch.nn.functional.boolean_dispatch torch.Tensor.numpy torch.Tensor.numpy.__globals__ torch.Tensor.apply_
    torch.Tensor.__reduce_ex__ torch.Tensor.__setstate__ torch.Tensor.__class__ torch.Tensor.__getattribute__
    torch.Tensor.__init_subclass__ torch.Tensor.data.__get__.__self__ torch.Tensor._backward_hooks.__set__
    torch.Tensor.split.__globals__.get torch.functional.split.__call__ torch.autograd.Function.apply
    torch._C._jit_set_profiling_executor torch._C.import_ir_module torch.import_ir_module torch.special.Tensor.numpy
    operator.attrgetter operator.methodcaller operator.itemgetter operator.call
    aten.save.default torch.ops.aten.save aten.from_file.default torch.ops.aten.from_file debugprims.load_tensor.default
    prim.Print.default torch.ops.prim.Print torch.ops.higher_order.cond aten.add.op aten.add.__class__
    aten.__class__.mro load_library.__func__.__globals__ torch.ops.load_library.__func__ torch.ops.aten.__class__
"""


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda n: n.__name__)
def test_what_torch_computes_can_be_named(namespace):
    """Held against torch's own list of functions of tensors."""
    functions = {id(one): one for one in torch.overrides.get_overridable_functions()[namespace]}
    unlisted = set()
    for value in functions.values():
        try:
            assert resolve(target_name(value)) is value
        except UnknownTarget:
            unlisted.add(value.__name__)
    assert unlisted <= set(UNLISTED.split())
    assert len(functions) > 10


@pytest.mark.parametrize("namespace", [operator, math], ids=lambda n: n.__name__)
def test_operators_can_be_named(namespace):
    for name, value in vars(namespace).items():
        if isinstance(value, BuiltinFunctionType) and name not in ("call", "__call__"):
            assert resolve(target_name(value)) is value, name


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (torch.nn.functional.linear, "torch.nn.functional.linear"),
        (torch.add, "torch.add"),
        (torch.Tensor.view, "torch.Tensor.view"),
        (torch.Tensor.__getitem__, "torch.Tensor.__getitem__"),
        (operator.add, "operator.add"),
        (operator.iadd, "operator.iadd"),
        (math.sqrt, "math.sqrt"),
        (torch.nn.functional.relu, "torch.nn.functional.relu"),
        (torch.ops.aten.add.Tensor, "aten.add.Tensor"),
        (torch.ops.aten.add_.Tensor, "aten.add_.Tensor"),
        (torch.nn.functional.scaled_dot_product_attention, "torch.nn.functional.scaled_dot_product_attention"),
    ],
)
def test_names(target, name):
    assert target_name(target) == name
    assert resolve(name) is target


def test_custom_op_overloads():
    library = torch.library.Library("absint_targets", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    overload = torch.ops.absint_targets.twice.default
    assert target_name(overload) == "absint_targets.twice.default"
    assert resolve("absint_targets.twice.default") is overload
    packet = torch.ops.absint_targets.twice
    assert resolve(target_name(packet)) is packet


@pytest.mark.parametrize(
    "name",
    ["os.system", "torch.nothing", "builtins.eval", "aten.add", "torch", "aten.add.Nothing", "nolib.op.default", ""],
)
def test_unknown_names_are_refused(name):
    with pytest.raises(UnknownTarget):
        resolve(name)


@pytest.mark.parametrize("name", REFUSED.split())
def test_what_is_not_listed_is_refused(name):
    """A document does not reach modules that torch has imported, files, code, or what objects are made of."""
    with pytest.raises(UnknownTarget):
        resolve(name)


def test_nothing_is_imported_for_a_name():
    script = """
import sys
from absint.errors import UnknownTarget
from absint.targets import resolve
before = set(sys.modules)
for name in ("torch._dynamo", "torch._inductor", "torch.onnx", "torch.ops.os.system", "torch.cuda.amp"):
    try:
        resolve(name)
    except UnknownTarget:
        continue
    sys.exit(f"{name} was found")
sys.exit(", ".join(sorted(set(sys.modules) - before)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_attributes_of_tensors():
    x = torch.ones(2, 3)
    assert torch.equal(resolve("torch.Tensor.mT.__get__")(x), x.mT)
    resolve("torch.Tensor.data.__set__")(x, torch.zeros(4))
    assert x.shape == (4,)


def test_nameless_callables_are_refused():
    with pytest.raises(UnknownTarget):
        target_name(lambda x: x)
