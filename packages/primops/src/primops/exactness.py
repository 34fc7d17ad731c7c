"""Which decompositions give eager's bits, and how far the others are from them.

A distance is counted in ulps of the call: steps of the result's dtype at the greatest magnitude among the call's
operands and results, since sums and products that cancel keep the rounding of what they cancel.

`is_exact` is about compiled code too: there only prims that round once (IEEE arithmetic, comparisons, moves) give the
bits of ATen's kernels. Others are computed in another order (sums), or by another approximation (exp).
"""

from __future__ import annotations

from collections.abc import Iterable

from primops.decompositions import TABLE
from primops.prims.layouts import FLOATS
from stagewire.graph import Node
from stagewire.types import TensorType
from stagewire.vocabulary import keeps_layout

_BOUNDS: tuple[tuple[tuple[int, int], str], ...] = (
    ((0, 2),
     "avg_pool2d_backward embedding_dense_backward huber_loss index_add logit "
     "logit_backward logsumexp mse_loss nextafter nll_loss2d_backward rrelu_with_noise_backward rsqrt "
     "sigmoid_backward smooth_l1_loss soft_margin_loss soft_margin_loss_backward special_entr sqrt"),
    ((4, 2),
     "_adaptive_avg_pool2d _fused_rms_norm _fused_rms_norm_backward _log_softmax _log_softmax_backward_data "
     "_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training "
     "_safe_softmax _softmax _softmax_backward_data _weight_norm_interface _weight_norm_interface_backward "
     "addcdiv addcmul addr binary_cross_entropy_backward dist elu_backward fmod gelu gelu_backward "
     "binary_cross_entropy glu_backward huber_loss_backward ldexp prod "
     "lerp linalg_cross linspace log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 mean mish "
     "mish_backward mse_loss_backward multi_margin_loss multi_margin_loss_backward mvlgamma native_batch_norm "
     "native_batch_norm_backward native_group_norm native_layer_norm nll_loss2d_forward nll_loss_forward norm "
     "reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward remainder "
     "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward silu_backward "
     "silu smooth_l1_loss_backward softplus softplus_backward special_xlog1py std std_mean tanh_backward trace "
     "upsample_bilinear2d upsample_linear1d upsample_trilinear3d var_mean xlogy"),
    ((4, 4),
     "binary_cross_entropy_with_logits pow"),
    ((16, 2),
     "linalg_vector_norm native_layer_norm_backward var"),
    ((16, 4),
     "addmv dot mv native_group_norm_backward upsample_bicubic2d vdot"),
    ((32, 4),
     "convolution convolution_backward"),
)  # fmt: skip
"""Decompositions that are not bitwise, by packet: ulps in float32 and float64, ulps in half precision. Each is at least
twice what `primops.testing.opinfo` finds on torch's operator samples."""

BOUNDS = {f"aten.{name}": ulps for ulps, names in _BOUNDS for name in names.split()}

_EXACT = (
    "neg abs sign sqrt rsqrt reciprocal ceil floor round trunc isnan isinf signbit logical_not bitwise_not div "
    "copysign nextafter add sub mul floor_div trunc_div maximum minimum fmax fmin eq ne lt le gt ge bitwise_and "
    "bitwise_or bitwise_xor shift_left shift_right logical_and logical_or logical_xor where convert_element_type "
    "bitcast broadcast_in_dim permute reshape slice flip cat pad as_strided clone full iota amax amin any all argmax "
    "argmin gather index scatter slice_scatter philox_uniform"
)
_ONE_ROUNDING = frozenset(f"prims.{name}" for name in _EXACT.split())


def bound(target: str) -> tuple[int, int]:
    """How many ulps a decomposition may be off ATen's op, in float32 or float64 and in half precision; 0 is bitwise.

    >>> bound("aten.add.Tensor")
    (0, 0)
    """
    packet = target.rpartition(".")[0]
    return BOUNDS.get(packet.replace("aten._foreach_", "aten."), (0, 0))


def is_exact(target: str, nodes: Iterable[Node]) -> bool:
    """Whether the decomposition of a call, made of `nodes`, gives eager's bits also when it is compiled."""
    return bound(target) == (0, 0) and all(_rounds_once(node) for node in nodes)


def _rounds_once(node: Node) -> bool:
    if node.target in _ONE_ROUNDING or keeps_layout(node.target):
        return True
    return not _makes_floats(node)


_UNORDERED = frozenset(
    f"prims.{name}" for name in ("scatter", "scatter_add", "index_put", "cumsum", "cumprod", "logcumsumexp")
)
"""Prims on floats for which compiled code keeps no order: several elements may go to one place, parts of a row are
joined as they become ready."""


def is_deterministic(nodes: Iterable[Node]) -> bool:
    """Whether compiled code for these nodes gives the same bits each time it runs on the same operands."""
    return not any(node.target in _UNORDERED and _makes_floats(node) for node in nodes)


def reads_mode(target: str) -> bool:
    """Whether ATen does something else where deterministic algorithms are asked for: it fills new memory."""
    return target.split(".")[1] in ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")


def _makes_floats(node: Node) -> bool:
    return any(isinstance(v.type, TensorType) and v.type.dtype in FLOATS for v in node.results)


def record() -> dict[str, str]:
    """What each decomposition promises, in words, by overload."""
    bounds = {target: bound(target) for target in sorted(TABLE)}
    words = "{} ulps; {} in half precision"
    return {target: words.format(*ulps) if any(ulps) else "bitwise" for target, ulps in bounds.items()}
