"""Calls of ATen's operators, of backwards and convolutions among them, that strategies draw (`stagewire.testing.ops`).

example ::= name(argument, ...) -> type, ...      argument ::= name: type | literal
"""

from __future__ import annotations

import re

_TEXT = """
_adaptive_avg_pool2d.default(x0: f32[2, 3, 6, 6], [3, 3]) -> f32[2, 3, 3, 3]
_adaptive_avg_pool2d_backward.default(x0: f32[2, 3, 3, 3], x1: f32[2, 3, 6, 6]) -> f32[2, 3, 6, 6]
_log_softmax.default(x0: f32[2, 4], -1, False) -> f32[2, 4]
_log_softmax_backward_data.default(x0: f32[2, 4], x1: f32[2, 4], -1, dtype(float32)) -> f32[2, 4]
_softmax.default(x0: f32[2, 4], -1, False) -> f32[2, 4]
_softmax_backward_data.default(x0: f32[2, 4], x1: f32[2, 4], -1, dtype(float32)) -> f32[2, 4]
addmm.default(x0: f32[3], x1: f32[2, 4], x2: f32[4, 3]) -> f32[2, 3]
amax.default(x0: f32[2, 4], [-1]) -> f32[2]
avg_pool2d.default(x0: f32[2, 3, 6, 6], [2, 2]) -> f32[2, 3, 3, 3]
avg_pool2d_backward.default(x0: f32[2, 3, 3, 3], x1: f32[2, 3, 6, 6], [2, 2], [], [0, 0], False, True, None) ->
    f32[2, 3, 6, 6]
binary_cross_entropy_with_logits.default(x0: f32[2, 4], x1: f32[2, 4]) -> f32[]
bmm.default(x0: f32[2, 3, 4], x1: f32[2, 4, 3]) -> f32[2, 3, 3]
cat.default([x0: f32[2, 4], x1: f32[2, 4]], 1) -> f32[2, 8]
col2im.default(x0: f32[2, 12, 25], [6, 6], [2, 2], [1, 1], [0, 0], [1, 1]) -> f32[2, 3, 6, 6]
convolution.default(x0: f32[2, 3, 6, 6], x1: f32[4, 3, 3, 3], x2: f32[4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1) ->
    f32[2, 4, 6, 6]
convolution_backward.default(x0: f32[2, 4, 6, 6], x1: f32[2, 3, 6, 6], x2: f32[4, 3, 3, 3], [4], [1, 1], [1, 1],
    [1, 1], False, [0, 0], 1, [True, True, True]) -> f32[2, 3, 6, 6], f32[4, 3, 3, 3], f32[4]
cumprod.default(x0: f32[8], 0) -> f32[8]
cumsum.default(x0: f32[2, 4], 0) -> f32[2, 4]
div.Scalar(x0: f32[2, 4], 8) -> f32[2, 4]
div.Tensor(x0: f32[2, 1], x1: i64[2, 1]) -> f32[2, 1]
elu.default(x0: f32[2, 4], 1.0) -> f32[2, 4]
elu_backward.default(x0: f32[2, 4], 1.0, 1, 1, False, x1: f32[2, 4]) -> f32[2, 4]
embedding.default(x0: f32[5, 4], x1: i64[2]) -> f32[2, 4]
embedding_dense_backward.default(x0: f32[2, 4], x1: i64[2], 5, -1, False) -> f32[5, 4]
eq.Scalar(x0: f32[], 0) -> b8[]
eq.Tensor(x0: f32[2, 1], x1: f32[2, 4]) -> b8[2, 4]
flip.default(x0: f32[2, 4], [0]) -> f32[2, 4]
gather.default(x0: f32[2, 4], 1, x1: i64[2, 2]) -> f32[2, 2]
gelu.default(x0: f32[2, 4]) -> f32[2, 4]
gelu_backward.default(x0: f32[2, 4], x1: f32[2, 4]) -> f32[2, 4]
grid_sampler_2d.default(x0: f32[2, 3, 6, 6], x1: f32[2, 3, 3, 2], 0, 0, False) -> f32[2, 3, 3, 3]
grid_sampler_2d_backward.default(x0: f32[2, 3, 3, 3], x1: f32[2, 3, 6, 6], x2: f32[2, 3, 3, 2], 0, 0, False,
    [True, True]) -> f32[2, 3, 6, 6], f32[2, 3, 3, 2]
hardsigmoid.default(x0: f32[2, 4]) -> f32[2, 4]
hardsigmoid_backward.default(x0: f32[2, 4], x1: f32[2, 4]) -> f32[2, 4]
hardswish.default(x0: f32[2, 4]) -> f32[2, 4]
hardswish_backward.default(x0: f32[2, 4], x1: f32[2, 4]) -> f32[2, 4]
hardtanh.default(x0: f32[2, 4], -1.0, 1.0) -> f32[2, 4]
hardtanh_backward.default(x0: f32[2, 4], x1: f32[2, 4], -1.0, 1.0) -> f32[2, 4]
im2col.default(x0: f32[2, 3, 6, 6], [2, 2], [1, 1], [0, 0], [1, 1]) -> f32[2, 12, 25]
index_add.default(x0: f32[2, 4], 0, x1: i64[1], x2: f32[1, 4]) -> f32[2, 4]
index_select.default(x0: f32[2, 4], 0, x1: i64[1]) -> f32[1, 4]
leaky_relu.default(x0: f32[2, 4]) -> f32[2, 4]
leaky_relu_backward.default(x0: f32[2, 4], x1: f32[2, 4], 0.01, False) -> f32[2, 4]
linalg_vector_norm.default(x0: f32[2, 4]) -> f32[]
log_sigmoid_backward.default(x0: f32[2, 4], x1: f32[2, 4], x2: f32[2, 4]) -> f32[2, 4]
log_sigmoid_forward.default(x0: f32[2, 4]) -> f32[2, 4], f32[2, 4]
masked_fill.Scalar(x0: f32[2, 4], x1: b8[], 0) -> f32[2, 4]
max_pool2d_with_indices.default(x0: f32[2, 3, 6, 6], [2, 2]) -> f32[2, 3, 3, 3], i64[2, 3, 3, 3]
max_pool2d_with_indices_backward.default(x0: f32[2, 3, 3, 3], x1: f32[2, 3, 6, 6], [2, 2], [], [0, 0], [1, 1], False,
    x2: i64[2, 3, 3, 3]) -> f32[2, 3, 6, 6]
mean.default(x0: f32[2, 4]) -> f32[]
mish.default(x0: f32[2, 4]) -> f32[2, 4]
mish_backward.default(x0: f32[2, 4], x1: f32[2, 4]) -> f32[2, 4]
mm.default(x0: f32[2, 4], x1: f32[4, 3]) -> f32[2, 3]
mse_loss.default(x0: f32[2, 4], x1: f32[2, 4]) -> f32[]
mse_loss_backward.default(x0: f32[], x1: f32[2, 4], x2: f32[2, 4], 1) -> f32[2, 4]
mul.Scalar(x0: f32[], 2) -> f32[]
mul.Tensor(x0: f32[2, 4], x1: f32[]) -> f32[2, 4]
native_batch_norm.default(x0: f32[2, 3, 6, 6], x1: f32[3], x2: f32[3], None, None, True, 0.1, 1e-05) ->
    f32[2, 3, 6, 6], f32[3], f32[3]
native_batch_norm_backward.default(x0: f32[2, 3, 6, 6], x1: f32[2, 3, 6, 6], x2: f32[3], None, None, x3: f32[3],
    x4: f32[3], True, 1e-05, [True, True, True]) -> f32[2, 3, 6, 6], f32[3], f32[3]
native_group_norm.default(x0: f32[2, 3, 6, 6], x1: f32[3], x2: f32[3], 2, 3, 36, 3, 1e-05) -> f32[2, 3, 6, 6],
    f32[2, 3], f32[2, 3]
native_group_norm_backward.default(x0: f32[2, 3, 6, 6], x1: f32[2, 3, 6, 6], x2: f32[2, 3], x3: f32[2, 3], x4: f32[3],
    2, 3, 36, 3, [True, True, True]) -> f32[2, 3, 6, 6], f32[3], f32[3]
native_layer_norm.default(x0: f32[2, 4], [4], x1: f32[4], x2: f32[4], 1e-05) -> f32[2, 4], f32[2, 1], f32[2, 1]
native_layer_norm_backward.default(x0: f32[2, 4], x1: f32[2, 4], [4], x2: f32[2, 1], x3: f32[2, 1], x4: f32[4],
    x5: f32[4], [True, True, True]) -> f32[2, 4], f32[4], f32[4]
neg.default(x0: f32[2, 4]) -> f32[2, 4]
nll_loss_backward.default(x0: f32[], x1: f32[2, 4], x2: i64[2], None, 1, -100, x3: f32[]) -> f32[2, 4]
nll_loss_forward.default(x0: f32[2, 4], x1: i64[2], None, 1, -100) -> f32[], f32[]
pixel_shuffle.default(x0: f32[1, 4, 2, 2], 2) -> f32[1, 1, 4, 4]
pixel_unshuffle.default(x0: f32[1, 1, 4, 4], 2) -> f32[1, 4, 2, 2]
prod.default(x0: f32[2, 4]) -> f32[]
reflection_pad2d.default(x0: f32[2, 3, 6, 6], [1, 1, 1, 1]) -> f32[2, 3, 8, 8]
reflection_pad2d_backward.default(x0: f32[2, 3, 8, 8], x1: f32[2, 3, 6, 6], [1, 1, 1, 1]) -> f32[2, 3, 6, 6]
relu.default(x0: f32[2, 4]) -> f32[2, 4]
scatter_add.default(x0: f32[2, 4], 1, x1: i64[2, 2], x2: f32[2, 2]) -> f32[2, 4]
sigmoid.default(x0: f32[2, 4]) -> f32[2, 4]
sigmoid_backward.default(x0: f32[2, 4], x1: f32[2, 4]) -> f32[2, 4]
silu.default(x0: f32[2, 4]) -> f32[2, 4]
silu_backward.default(x0: f32[2, 4], x1: f32[2, 4]) -> f32[2, 4]
slice.Tensor(x0: f32[2, 8], 1, 0, 4) -> f32[2, 4]{8, 1}
smooth_l1_loss.default(x0: f32[2, 4], x1: f32[2, 4]) -> f32[]
smooth_l1_loss_backward.default(x0: f32[], x1: f32[2, 4], x2: f32[2, 4], 1, 1.0) -> f32[2, 4]
softplus.default(x0: f32[2, 4]) -> f32[2, 4]
softplus_backward.default(x0: f32[2, 4], x1: f32[2, 4], 1, 20) -> f32[2, 4]
std.correction(x0: f32[2, 4]) -> f32[]
sub.Tensor(x0: f32[2, 4], x1: f32[2, 4]) -> f32[2, 4]
sum.dim_IntList(x0: f32[2, 3], [0], True) -> f32[1, 3]
t.default(x0: f32[2, 4]) -> f32[4, 2]{1, 4}
tanh.default(x0: f32[2, 4]) -> f32[2, 4]
tanh_backward.default(x0: f32[2, 4], x1: f32[2, 4]) -> f32[2, 4]
threshold_backward.default(x0: f32[2, 4], x1: f32[2, 4], 0) -> f32[2, 4]
transpose.int(x0: f32[2, 3, 4], 1, 2) -> f32[2, 4, 3]{12, 1, 4}
upsample_bilinear2d.default(x0: f32[2, 3, 6, 6], [12, 12], False, 2.0, 2.0) -> f32[2, 3, 12, 12]
upsample_bilinear2d_backward.default(x0: f32[2, 3, 12, 12], [12, 12], [2, 3, 6, 6], False, 2.0, 2.0) -> f32[2, 3, 6, 6]
upsample_nearest2d.default(x0: f32[2, 3, 6, 6], [12, 12], 2.0, 2.0) -> f32[2, 3, 12, 12]
upsample_nearest2d_backward.default(x0: f32[2, 3, 12, 12], [12, 12], [2, 3, 6, 6], 2.0, 2.0) -> f32[2, 3, 6, 6]
view.default(x0: f32[1, 3], [3]) -> f32[3]
"""

EXAMPLES = {text.partition("(")[0]: text for text in re.sub(r"\n +", " ", _TEXT).strip().splitlines()}
"""By the name of the operator."""
