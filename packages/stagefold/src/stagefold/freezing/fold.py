"""Convolutions and products of a program that is frozen: normalisations fold into weights, what follows joins them.

The call that they become is `codegen.runtime.cpu_products`'s:

    stagefold.convolution.default(input, weight, bias?, stride, padding, dilation, groups, post, other?)

convolution, plus `other`, then `post` ("none", "relu", "swish" or "hardswish"), with the weight packed for oneDNN. So
are the weights of products where that gains: `stagefold.product.default(input, weight, bias?, turned)`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from msgspec.structs import replace

from absint.cpu_kernels import has_matrix_tiles, onednn_computes
from absint.schema import effect_of
from aotgrad.ops import is_pure, is_view
from primops.channels_last import CONVOLUTION, may_turn
from primops.channels_last import suits as is_depthwise
from stagewire.grad import Grad
from stagewire.graph import (
    Arg,
    Graph,
    List,
    MemoryFormatArg,
    Node,
    Ref,
    Value,
    definitions,
    node_references,
    references,
)
from stagewire.graph_passes import live_nodes
from stagewire.types import TensorType, contiguous, numel

PACKED = "stagefold.convolution.default"
PACKED_PRODUCT = "stagefold.product.default"
PRODUCTS = frozenset(("aten.mm.default", "aten.addmm.default"))
NORMALISATIONS = frozenset(("aten.native_batch_norm.default", "aten._native_batch_norm_legit_no_training.default"))
POSTS = {"aten.relu.default": "relu", "aten.silu.default": "swish", "aten.hardswish.default": "hardswish"}
"""Pointwise calls that oneDNN computes along with a convolution."""


def _packed_dtypes() -> tuple[str, ...]:
    """Of weights that are worth packing, those that oneDNN computes in on this processor."""
    return tuple(name for name in ("float32", "bfloat16") if onednn_computes(getattr(torch, name)))


LEAST_WEIGHT = 1 << 16
"""Elements of a product's weight from which on packing gains more than its call costs: on a Xeon with AMX it is 1.2 to
2.0 times ATen's speed in bfloat16. Where a processor has no tiles for matrices it is 1.0 to 1.2, and whole models gain
nothing, nor does float32. (`benchmarks/packed_products.py`)"""


def _packs_products(dtype: str) -> bool:
    return dtype == "bfloat16" and has_matrix_tiles()


def fold_normalisations(grad: Grad) -> Grad:
    """Batch norms with fixed statistics, behind convolutions that nothing else reads, as new weights."""
    return _Rewrite(grad).result(_Rewrite.fold, NORMALISATIONS)


def pack_convolutions(grad: Grad) -> Grad:
    """Convolutions with constant weights, with what may follow them."""
    return _Rewrite(grad).result(_Rewrite.pack, {CONVOLUTION})


def pack_products(grad: Grad) -> Grad:
    """Products of matrices with constant weights."""
    return _Rewrite(grad).result(_Rewrite.pack_product, PRODUCTS)


class _Rewrite:
    """The nodes of a program with replacements: `instead` by the identity of the node."""

    def __init__(self, grad: Grad) -> None:
        self.grad = grad
        self.users = users(grad.joint.nodes)
        self.outputs = {name for arg in grad.joint.outputs for name in references(arg)}
        self.makers = {v.name: node for node in grad.joint.nodes for v in node.results if v.name}
        self.constant = set(frozen_inputs(grad))
        self.constant.update(v.name for node in constant_nodes(grad)[0] for v in node.results)
        self.types = {name: value.type for name, value in definitions(grad.joint).items()}
        self.instead: dict[int, list[Node]] = {}

    def result(self, rewrite: Callable[[_Rewrite, Node], None], targets: Collection[str]) -> Grad:
        """The program with the calls of these targets rewritten, but for those that run once as they are."""
        for node in self.grad.joint.nodes:
            if node.target in targets and node.results[0].name not in self.constant:
                rewrite(self, node)
        if not self.instead:
            return self.grad
        nodes = [one for node in self.grad.joint.nodes for one in self.instead.get(id(node), [node])]
        return replace(self.grad, joint=replace(self.grad.joint, nodes=tuple(nodes)))

    # ---- batch norm

    def fold(self, node: Node) -> None:
        found = self._normalised(node)
        if found is None:
            return
        convolution, (gamma, beta, mean, variance), epsilon = found
        (x, weight, bias), rest = convolution.args[:3], convolution.args[3:]
        kind = self.types[weight.name]  # type: ignore[union-attr]
        assert isinstance(kind, TensorType)
        channels = kind.shape[0]
        vector = contiguous(kind.dtype, (channels,))
        made = _Emit(f"{node.results[0].name}_folded", node)
        scale = made("aten.rsqrt.default", vector, made("aten.add.Tensor", vector, variance, epsilon))
        if gamma is not None:
            scale = made("aten.mul.Tensor", vector, scale, gamma)
        shape = (channels, *(1 for _ in kind.shape[1:]))
        column = made("aten.view.default", contiguous(kind.dtype, shape), scale, List(shape))
        scaled = made("aten.mul.Tensor", contiguous(kind.dtype, kind.shape), weight, column)
        shift = mean if bias is None else made("aten.sub.Tensor", vector, mean, bias)
        shift = made("aten.mul.Tensor", vector, shift, scale)
        shift = made("aten.sub.Tensor", vector, beta, shift) if beta else made("aten.neg.default", vector, shift)
        changed = replace(convolution, args=(x, scaled, shift, *rest), results=node.results[:1])
        self.instead[id(convolution)] = []
        self.instead[id(node)] = [*made.nodes, changed]

    def _normalised(self, node: Node) -> tuple[Node, tuple[Arg, ...], float] | None:
        """The convolution before a batch norm, the norm's four vectors and its epsilon; None if it cannot be folded."""
        training = node.target == "aten.native_batch_norm.default" and node.args[5:6] != (False,)
        if training or node.kwargs or len(node.args) < 7 or not isinstance(node.args[0], Ref):
            return None
        if any(v.name in self.users or v.name in self.outputs for v in node.results[1:]):
            return None
        convolution = self._single(node.args[0].name)
        if convolution is None or not self._is_plain(convolution) or id(convolution) in self.instead:
            return None
        vectors, weight, bias = node.args[1:5], convolution.args[1], convolution.args[2]
        if vectors[2] is None or vectors[3] is None:
            return None
        operands = [arg for arg in (weight, bias, *vectors) if arg is not None]
        names = [arg.name for arg in operands if isinstance(arg, Ref)]
        dtypes = {getattr(self.types[name], "dtype", None) for name in names}
        if len(names) != len(operands) or not self.constant.issuperset(names) or len(dtypes) != 1:
            return None
        if dtypes & {"float32", "float64"} and isinstance(node.args[-1], float):
            return convolution, tuple(vectors), node.args[-1]
        return None

    # ---- packing

    def pack(self, node: Node) -> None:
        weight, bias = node.args[1], node.args[2]
        if not self._is_plain(node) or not isinstance(weight, Ref) or weight.name not in self.constant:
            return
        type = self.types[weight.name]
        fine = isinstance(type, TensorType) and len(type.shape) == 4 and type.dtype in _packed_dtypes()
        if not fine or type.device != "cpu" or not (bias is None or bias.name in self.constant):  # type: ignore[union-attr]
            return
        chain, post, other = self._followers(node)
        x, stride, padding, dilation, groups = node.args[0], *node.args[3:6], node.args[8]
        made, weight = self._owned(weight, node)
        args = (x, weight, bias, stride, padding, dilation, groups, post, other)
        self.instead.update({id(step): [] for step in chain})
        self.instead[id(chain[-1])] = [*made, replace(chain[-1], target=PACKED, args=args, kwargs={})]

    def pack_product(self, node: Node) -> None:
        bias, x, weight = (None, *node.args) if len(node.args) == 2 else node.args
        constant = [arg for arg in (weight, bias) if isinstance(arg, Ref) and arg.name in self.constant]
        if node.kwargs or len(constant) != len(node.args) - 1 or not isinstance(weight, Ref):
            return
        type = self.types[weight.name]
        depth, width = type.shape
        if type.device != "cpu" or depth * width < LEAST_WEIGHT or not _packs_products(type.dtype):
            return
        if isinstance(bias, Ref) and self.types[bias.name].shape != (width,):
            return
        maker = self.makers.get(weight.name)
        turned = maker is not None and maker.target == "aten.t.default"
        made, weight = self._owned(maker.args[0] if turned else weight, node)
        self.instead[id(node)] = [*made, replace(node, target=PACKED_PRODUCT, args=(x, weight, bias, turned))]

    def _owned(self, weight: Ref, node: Node) -> tuple[list[Node], Ref]:
        """A weight that is no view, and what makes it of one: what is packed belongs to memory and its version."""
        maker, type = self.makers.get(weight.name), self.types[weight.name]
        if maker is None or not is_view(maker.target):
            return [], weight
        made = _Emit(f"{node.results[0].name}_weight", node)
        keywords = {"memory_format": MemoryFormatArg("contiguous_format")}
        copy = made("aten.clone.default", contiguous(type.dtype, type.shape), weight, **keywords)
        return made.nodes, copy

    def _followers(self, node: Node) -> tuple[list[Node], str, Arg]:
        """The nodes of conv (+ add) (+ post), the post, and what is added."""
        chain, other = [node], None
        follower = self._only_user(node)
        if follower is not None and follower.target == "aten.add.Tensor":
            other = self._added(node, follower)
            if other is None:
                return chain, "none", None
            chain.append(follower)
            follower = self._only_user(follower)
        post = POSTS.get(follower.target) if follower is not None and len(follower.args) == 1 else None
        if follower is None or post is None or follower.kwargs or (other is not None and post != "relu"):
            return chain, "none", other
        return [*chain, follower], post, other

    def _added(self, node: Node, add: Node) -> Arg:
        """The other summand, where it is a tensor of the same type that is not constant."""
        if add.kwargs or len(add.args) != 2:
            return None
        name = node.results[0].name
        others = [arg for arg in add.args if not (isinstance(arg, Ref) and arg.name == name)]
        if len(others) != 1 or not isinstance(others[0], Ref) or others[0].name in self.constant:
            return None
        mine, its = self.types[name], self.types[others[0].name]
        same = isinstance(mine, TensorType) and isinstance(its, TensorType) and (mine.dtype, mine.shape) == (
            its.dtype, its.shape)  # fmt: skip
        return others[0] if same else None

    def _only_user(self, node: Node) -> Node | None:
        name = node.results[0].name
        found = self.users.get(name, [])
        if len(found) != 1 or name in self.outputs or id(found[0]) in self.instead:
            return None
        return found[0]

    def _single(self, name: str) -> Node | None:
        """The node that makes a value, if it has one user and is no output."""
        if name in self.outputs or len(self.users.get(name, ())) != 1:
            return None
        return self.makers.get(name)

    @staticmethod
    def _is_plain(node: Node) -> bool:
        """A convolution, not transposed, with all of its arguments by position."""
        return node.target == CONVOLUTION and len(node.args) == 9 and node.args[6] is False


class _Emit:
    """New nodes, in order, at the line of another."""

    def __init__(self, prefix: str, like: Node) -> None:
        self.prefix, self.like = prefix, like
        self.nodes: list[Node] = []

    def __call__(self, target: str, type: TensorType, *args: Arg, **kwargs: Arg) -> Ref:
        name = f"{self.prefix}_{len(self.nodes)}"
        results, line, phase = (Value(name, type),), self.like.line, self.like.phase
        self.nodes.append(Node(target, args, kwargs, results, line, phase, effect_of(target)))
        return Ref(name)


LEAST_ELEMENTS = 1 << 16
"""Elements of input, weight and result of a convolution, on average, from which on packing gains more than calls cost
(a MobileNet at batch 1 has 40,000: 0.65 of the speed; at batch 8 eight times as many: 1.7 times)."""


def suits(graph: Graph) -> bool:
    """Whether packed convolutions in channels-last layout are the faster ones; where many are depthwise, loops and
    products are."""
    values = definitions(graph)
    sizes = []
    for node in graph.nodes:
        if node.target == CONVOLUTION:
            tensors = [*(values[arg.name] for arg in node.args[:2] if isinstance(arg, Ref)), *node.results]
            sizes.append(sum(numel(value.type.shape) for value in tensors if isinstance(value.type, TensorType)))
    return bool(sizes) and sum(sizes) >= LEAST_ELEMENTS * len(sizes) and may_turn(graph) and not is_depthwise(graph)


FROZEN_ROLES = frozenset(("parameter", "buffer"))


def frozen_inputs(grad: Grad) -> dict[str, int]:
    """Names of the graph's inputs that are weights (parameters and buffers that the program does not write), and
    their places."""
    names = [value.name for value in grad.joint.inputs]
    return {
        names[place]: place
        for place, given in enumerate(grad.binding.inputs)
        if given.role in FROZEN_ROLES and not given.mutated and not given.fixed_offset
    }


def constant_nodes(grad: Grad) -> tuple[list[Node], set[str]]:
    """The nodes that depend on weights (and on constants of the program) alone, in order; and the values of these that
    depend on a weight, the weights among them."""
    weights = set(frozen_inputs(grad))
    first = len(grad.binding.inputs)
    fixed = {value.name for value in grad.joint.inputs[first:]}
    outputs = {name for arg in grad.joint.outputs for name in references(arg)}
    found = []
    for node in grad.joint.nodes:
        names = set(node_references(node))
        results = [value.name for value in node.results if value.name]
        makes_tensors = all(isinstance(value.type, TensorType) for value in node.results if value.name)
        is_fixed = names <= weights | fixed and is_pure(node) and makes_tensors
        if is_fixed and outputs.isdisjoint(results):
            (weights if names & weights else fixed).update(results)
            found.append(node)
    return needed(found, [value.name for node in found for value in node.results if value.name in weights]), weights


def needed(nodes: Iterable[Node], names: Iterable[str]) -> list[Node]:
    """Those of the (pure) nodes that the named values need, in order."""
    return list(live_nodes(Graph((), tuple(nodes), tuple(Ref(name) for name in names))))


def users(nodes: Iterable[Node]) -> Mapping[str, list[Node]]:
    """The nodes that use each value."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        for name in dict.fromkeys(node_references(node)):
            found.setdefault(name, []).append(node)
    return found
