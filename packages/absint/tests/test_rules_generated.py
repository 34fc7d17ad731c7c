"""Every family of rules against eager, on generated operands of awkward layouts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from absint import AbstractMode, AbstractTensor, abstract_call, contiguous, from_tensor
from absint.errors import TypeRuleError
from absint.symbolic import ShapeEnv, make_size
from absint.testing import OracleMode
from absint.testing.strategies import broadcastable, laid_out, tensors
from stagewire.expr import evaluate

RUNS = settings(max_examples=60, deadline=None)
FLOATS = (torch.float32, torch.bfloat16, torch.float64)
aten = torch.ops.aten


def holds(call, *args, **kwargs):
    """Run the call; every rule that it passes must agree with eager. A refused call says nothing."""
    oracle = OracleMode()
    try:
        with oracle:
            call(*args, **kwargs)
    except (RuntimeError, IndexError, NotImplementedError, ValueError):
        return
    assert not oracle.mismatches, "\n".join(map(str, oracle.mismatches))


UNARY = (
    "neg abs sign floor sqrt exp log sin cos tanh sigmoid relu gelu silu erf rsqrt reciprocal isnan logical_not "
    "clone zeros_like ones_like empty_like full_like_2 sum mean max argmax any all amax square_ sgn trunc "
    "bitwise_not isinf hardswish hardsigmoid leaky_relu elu softplus mish nan_to_num log_sigmoid_forward "
    "signbit frac round angle sort bernoulli nansum prod min squeeze"
)


@pytest.mark.parametrize("name", [n for n in UNARY.split() if not n.endswith(("_2", "square_"))])
@RUNS
@given(tensor=tensors())
def test_unary(name, tensor):
    holds(getattr(aten, name), tensor)


BINARY = (
    "add sub mul div eq lt ge logical_and logical_xor maximum minimum fmax remainder fmod atan2 pow floor_divide "
    "bitwise_and bitwise_or copysign hypot xlogy where_ masked_fill_ heaviside nextafter logaddexp gcd"
)


@pytest.mark.parametrize("name", [n for n in BINARY.split() if not n.endswith("_")])
@RUNS
@given(operands=broadcastable(2))
def test_binary(name, operands):
    holds(getattr(aten, name), *operands)


@pytest.mark.parametrize("name", ["add", "mul", "lt", "where", "lerp", "pow"])
@RUNS
@given(operands=broadcastable(3, FLOATS, same_dtype=True), elsewhere=st.lists(st.booleans(), min_size=3, max_size=3))
def test_devices(name, operands, elsewhere):
    """Numbers of the CPU go along with tensors of another device; other tensors do not."""
    moved = [x.to("meta") if moves else x for x, moves in zip(operands, elsewhere, strict=True)]
    moved = [moved[0] > 0, *moved[1:]] if name == "where" else moved if name == "lerp" else moved[:2]
    try:
        expected = getattr(aten, name)(*moved)
    except RuntimeError:
        with pytest.raises(TypeRuleError):
            abstract_call(getattr(aten, name), tuple(map(on_types, moved)), mode=AbstractMode())
        return
    made = abstract_call(getattr(aten, name), tuple(map(on_types, moved)), mode=AbstractMode())
    assert (made.device, made.dtype, made.shape) == (expected.device, expected.dtype, expected.shape)


def on_types(tensor):
    return AbstractTensor(from_tensor(tensor))


@st.composite
def alike(draw, count=2):
    """Shapes of symbols and numbers that broadcast, and some that need not."""
    shape = draw(st.lists(st.sampled_from("aabb13"), min_size=1, max_size=3))
    drawn = [shape[draw(st.integers(0, len(shape))) :] for _ in range(count)]
    return [["1" if draw(st.integers(0, 4)) == 0 else draw(st.sampled_from((one, one, *"ab"))) for one in each]
            for each in drawn]  # fmt: skip


@RUNS
@given(shapes=alike(), sizes=st.permutations((2, 4, 5)))
def test_symbols_that_need_not_be_equal(shapes, sizes):
    """Where eager broadcasts other sizes too, nothing was assumed that excludes them."""
    same, first, second = sizes
    env = ShapeEnv()
    symbols = {name: make_size(env, env.create(name, hint=same)) for name in "ab"}
    types = [contiguous([symbols.get(one) or int(one) for one in shape], torch.float32) for shape in shapes]
    try:
        abstract_call(aten.add, tuple(map(AbstractTensor, types)), mode=AbstractMode())
    except TypeRuleError:
        return
    values = {"a": first, "b": second}
    try:
        aten.add(*[torch.ones([values.get(one) or int(one) for one in shape]) for shape in shapes])
    except RuntimeError:
        return
    for relation in env.relations:
        left, right = evaluate(relation.left, values), evaluate(relation.right, values)
        assert {"==": left == right, "!=": left != right, ">=": left >= right}[relation.operator], (shapes, relation)


TENSOR_AND_NUMBER = "add sub mul div eq lt remainder pow floor_divide rsub fmod"


@pytest.mark.parametrize("name", TENSOR_AND_NUMBER.split())
@RUNS
@given(tensor=tensors(), number=st.sampled_from((0, 2, 2.5, True)))
def test_tensor_and_number(name, tensor, number):
    holds(getattr(aten, name), tensor, number)


@RUNS
@given(operands=broadcastable(3))
def test_ternary(operands):
    first, second, third = operands
    holds(aten.where, first.bool(), second, third)
    holds(aten.addcmul, first, second, third, value=2)
    holds(aten.addcdiv, first, second, third)
    holds(aten.lerp, first, second, third)
    holds(aten.clamp, first, second, third)
    holds(aten.masked_fill, first, second.bool(), 3)


@RUNS
@given(operands=broadcastable(2, FLOATS, same_dtype=True))
def test_activation_backwards(operands):
    grad, value = operands
    for call in (aten.gelu_backward, aten.silu_backward, aten.tanh_backward, aten.sigmoid_backward):
        holds(call, grad, value)
    holds(aten.threshold_backward, grad, value, 0)
    holds(aten.hardtanh_backward, grad, value, -1, 1)
    holds(aten.leaky_relu_backward, grad, value, 0.1, False)
    holds(aten.elu_backward, grad, 1.0, 1.0, 1.0, False, value)
    holds(aten.softplus_backward, grad, value, 1, 20)
    holds(aten.native_dropout_backward, grad, value.bool(), 2.0)


@RUNS
@given(tensor=tensors(), data=st.data())
def test_reductions(tensor, data):
    dims = data.draw(st.lists(st.integers(-4, 3), max_size=3))
    keepdim = data.draw(st.booleans())
    for call in (aten.sum.dim_IntList, aten.mean.dim, aten.amax, aten.any.dims, aten.logsumexp):
        holds(call, tensor, dims, keepdim)
    holds(aten.var.correction, tensor, dims, correction=1, keepdim=keepdim)
    holds(aten.var_mean.correction, tensor, dims, correction=1, keepdim=keepdim)
    holds(aten.linalg_vector_norm, tensor, 2, dims, keepdim)
    dim = dims[0] if dims else 0
    for call in (aten.max.dim, aten.argmax, aten.prod.dim_int, aten.median.dim, aten.all.dim):
        holds(call, tensor, dim, keepdim)
    holds(aten.cumsum, tensor, dim)
    holds(aten.cummax, tensor, dim)
    holds(aten._softmax, tensor, dim, False)
    holds(aten._log_softmax, tensor, dim, False)
    holds(aten.sort.stable, tensor, stable=True, dim=dim)
    holds(aten.topk, tensor, 1, dim)


@RUNS
@given(tensor=tensors(), data=st.data())
def test_views(tensor, data):
    rank = tensor.dim()
    dims = st.integers(-rank - 1, rank)
    first, second = data.draw(dims), data.draw(dims)
    start, stop = data.draw(st.integers(-6, 6)), data.draw(st.integers(-6, 6))
    with_step = data.draw(st.integers(1, 3))
    holds(aten.transpose.int, tensor, first, second)
    holds(aten.t, tensor)
    holds(aten.permute, tensor, data.draw(st.permutations(range(rank))))
    holds(aten.select.int, tensor, first, start)
    holds(aten.slice.Tensor, tensor, first, start, stop, with_step)
    holds(aten.squeeze.dim, tensor, first)
    holds(aten.squeeze.dims, tensor, [first])
    holds(aten.unsqueeze, tensor, first)
    holds(aten.unbind.int, tensor, first)
    holds(aten.split.Tensor, tensor, with_step, first)
    holds(aten.diagonal, tensor, start, first, second)
    holds(aten.unfold, tensor, first, with_step, with_step)
    holds(aten.expand, tensor, [2, *tensor.shape])
    holds(aten.expand, tensor, [3 if size == 1 else -1 for size in tensor.shape])
    holds(aten.view, tensor, [-1])
    holds(aten.view, tensor, [*tensor.shape, 1])
    holds(aten.view.dtype, tensor, torch.uint8)
    holds(aten.view.dtype, tensor, torch.float32)


@RUNS
@given(tensor=tensors(), data=st.data())
def test_movement(tensor, data):
    rank = tensor.dim()
    dim = data.draw(st.integers(-rank, max(rank - 1, 0)))
    holds(aten.flip, tensor, [dim])
    holds(aten.roll, tensor, [1], [dim])
    holds(aten.repeat, tensor, [2] * rank)
    holds(aten.tril, tensor)
    holds(aten.cat, [tensor, tensor], dim)
    holds(aten.stack, [tensor, tensor], dim)
    holds(aten._to_copy, tensor, dtype=torch.float64)
    holds(aten._to_copy, tensor, memory_format=torch.channels_last)
    holds(aten.clone, tensor, memory_format=torch.contiguous_format)
    holds(aten.constant_pad_nd, tensor, [1, 2])
    holds(aten.constant_pad_nd, tensor, [-1, 0])
    holds(aten.new_zeros, tensor, [2, 3])
    holds(aten.slice_scatter, tensor, tensor, dim)
    holds(aten.index_select, tensor, dim, torch.zeros(2, dtype=torch.int64))
    holds(
        aten.index_add,
        tensor,
        dim,
        torch.zeros(1, dtype=torch.int64),
        tensor.narrow(dim, 0, 1) if rank and tensor.shape[dim] else tensor,
    )
    holds(aten.slice_backward, tensor, list(tensor.shape), dim, 0, 100, 1)


@RUNS
@given(tensor=tensors(), dim=st.integers(-2, 2), start=st.integers(-4, 4), length=st.integers(-1, 4))
def test_what_is_beyond_a_dimension_is_refused(tensor, dim, start, length):
    """Where eager refuses the copy of a part, so does the rule."""
    try:
        aten.narrow_copy(tensor, dim, start, length)
    except (RuntimeError, IndexError):
        with pytest.raises((TypeRuleError, IndexError)):
            abstract_call(aten.narrow_copy, (on_types(tensor), dim, start, length), mode=AbstractMode())
    else:
        holds(aten.narrow_copy, tensor, dim, start, length)


@RUNS
@given(operands=broadcastable(2))
def test_copy(operands):
    holds(aten.copy, *operands)
    holds(aten.cat, operands)


@RUNS
@given(tensor=tensors((torch.float32, torch.int64)), data=st.data())
def test_index(tensor, data):
    rank = tensor.dim()
    shapes = broadcastable(rank, (torch.int64, torch.int32), max_rank=3) if rank else st.just([])
    used = data.draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
    drawn = [i - 1 for i in data.draw(shapes)]
    indices = [i if keep else None for i, keep in zip(drawn, used, strict=True)]
    holds(aten.index.Tensor, tensor, indices)
    holds(aten.gather, tensor, 0, torch.zeros(tensor.shape, dtype=torch.int64))
    holds(aten.scatter.value, tensor, 0, torch.zeros(tensor.shape, dtype=torch.int64), 1)


@RUNS
@given(st.data())
def test_products(data):
    n, k, m, b = (data.draw(st.integers(0, 3)) for _ in range(4))
    dtype = data.draw(st.sampled_from(FLOATS))
    left, right = data.draw(laid_out((n, k), dtype)), data.draw(laid_out((k, m), dtype))
    holds(aten.mm, left, right)
    holds(aten.addmm, data.draw(laid_out((m,), dtype)), left, right)
    holds(aten.mv, left, data.draw(laid_out((k,), dtype)))
    batched = data.draw(laid_out((b, n, k), dtype)), data.draw(laid_out((b, k, m), dtype))
    holds(aten.bmm, *batched)
    holds(aten.baddbmm, data.draw(laid_out((n, m), dtype)), *batched)
    ends = torch.full((b,), 16, dtype=torch.int32)
    ranks = data.draw(st.tuples(*[st.integers(2, 3)] * 2))
    rows, columns = [torch.ones((b, 16, 16)[-rank:], dtype=torch.bfloat16) for rank in ranks]
    holds(aten._grouped_mm, rows, columns, None if min(ranks) == 3 else ends)


@RUNS
@given(st.data())
def test_distances(data):
    """Between rows of batches that broadcast, forward and backward."""
    batches = data.draw(broadcastable(2, max_rank=2))
    columns, counts = data.draw(st.integers(0, 2)), st.integers(0, 2)
    shapes = [(*batch.shape, data.draw(counts), columns) for batch in batches]
    left, right = [data.draw(laid_out(shape, torch.float32)).requires_grad_() for shape in shapes]
    power = data.draw(st.sampled_from((0.0, 1.0, 2.0, 3.0)))
    holds(lambda: torch.cdist(left, right, power).sum().backward())


@RUNS
@given(st.data())
def test_images(data):
    shape = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), 6, 5)
    image = data.draw(laid_out(shape, torch.float32))
    channels = shape[1]
    weight = data.draw(laid_out((2, channels, 3, 3), torch.float32))
    spec = ([1, 2], [1, 0], [1, 1], False, [0, 0], 1)
    holds(aten.convolution, image, weight, None, *spec)
    result = aten.convolution(image, weight, None, *spec)
    grad = data.draw(laid_out(tuple(result.shape), torch.float32))
    holds(aten.convolution_backward, grad, image, weight, [2], *spec, [True, True, True])
    holds(aten.max_pool2d_with_indices, image, [2, 2])
    holds(aten.avg_pool2d, image, [2, 2], [1, 2], [1, 0], True)
    holds(aten._adaptive_avg_pool2d, image, [2, 3])
    holds(aten.upsample_bilinear2d, image, [7, 9], False)
    holds(aten.upsample_nearest2d, image, [7, 9])
    ones = torch.ones(channels)
    norm = aten.native_batch_norm(image, ones, ones, ones.clone(), ones.clone(), True, 0.1, 1e-5)
    holds(aten.native_batch_norm, image, ones, ones, ones.clone(), ones.clone(), True, 0.1, 1e-5)
    holds(aten.native_batch_norm_backward, image, image, ones, ones, ones, *norm[1:], True, 1e-5, [True] * 3)
    holds(aten.native_group_norm, image, ones, ones, shape[0], channels, 30, 1, 1e-5)
    holds(aten.native_layer_norm, image, [5], None, None, 1e-5)
    holds(aten.reflection_pad2d, image, [1, 1, 1, 1])
    holds(aten.constant_pad_nd, image, [1, 1, 1, 1])


@RUNS
@given(st.data())
def test_matrices(data):
    batch = tuple(data.draw(st.lists(st.integers(0, 2), max_size=2)))
    rows, columns = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    dtype = data.draw(st.sampled_from((torch.float32, torch.float64, torch.complex64)))
    matrix = data.draw(laid_out((*batch, rows, columns), dtype))
    square = data.draw(laid_out((*batch, rows, rows), dtype)) + torch.eye(rows, dtype=dtype)
    for call in (torch.linalg.svd, torch.linalg.qr, torch.linalg.lu, torch.linalg.pinv, torch.geqrf):
        holds(call, matrix)
    for call in (torch.linalg.inv_ex, torch.linalg.det, torch.linalg.slogdet, torch.linalg.eigh, torch.linalg.eig):
        holds(call, square)
    holds(torch.linalg.cholesky_ex, square @ square.mH)
    holds(torch.linalg.matrix_exp, square)
    left = data.draw(st.booleans())
    right = data.draw(laid_out((*batch, rows, columns) if left else (*batch, columns, rows), dtype))
    holds(torch.linalg.solve_ex, square, right, left=left)
    holds(torch.linalg.solve_triangular, square, right, upper=True, left=left)
    holds(torch.linalg.solve_ex, square, data.draw(laid_out((*batch, rows), dtype)))


@RUNS
@given(tensor=tensors((torch.float32, torch.float64)), data=st.data())
def test_fourier_transforms(tensor, data):
    rank = tensor.dim()
    dims = data.draw(st.lists(st.integers(0, max(rank - 1, 0)), unique=True, min_size=1, max_size=3))
    holds(torch.fft.rfftn, tensor, dim=dims)
    holds(torch.fft.irfftn, tensor.to(torch.complex64), dim=dims)
    holds(torch.fft.fftn, tensor, dim=dims)
    holds(torch.fft.ifftn, tensor.to(torch.complex64), dim=dims)


@RUNS
@given(st.data())
def test_image_rearrangements(data):
    image = data.draw(laid_out((data.draw(st.integers(0, 2)), 4, 4, 6), torch.float32))
    grid = data.draw(laid_out((image.shape[0], 3, 2, 2), torch.float32))
    factor = data.draw(st.integers(1, 2))
    holds(aten.pixel_shuffle, image, factor)
    holds(aten.pixel_unshuffle, image, factor)
    holds(aten.channel_shuffle, image, 2)
    holds(aten.grid_sampler_2d, image, grid, 0, 0, False)
    holds(aten.grid_sampler_2d_backward, torch.ones(image.shape[0], 4, 3, 2), image, grid, 0, 0, False, [True, True])
    holds(aten.im2col, image, [2, 2], [1, 1], [0, 1], [2, 1])
    holds(aten.max_pool2d_with_indices, image, [2, 2], [1, 2], [1, 0], [1, 1], True)
    holds(aten.adaptive_max_pool2d, image, [2, 3])
    holds(aten.upsample_bicubic2d, image, [7, 9], False)
    holds(aten.replication_pad2d, image, [1, 1, 1, 1])
    holds(aten.roll, image, [1, 1], [0, 2])
    holds(aten.rot90, image, data.draw(st.integers(-4, 4)), data.draw(st.permutations(range(4)))[:2])


@RUNS
@given(st.data())
def test_convolutions(data):
    """Transposed, grouped and dilated ones, of one to three spatial dimensions."""
    rank = data.draw(st.integers(1, 3))
    groups = data.draw(st.integers(1, 2))
    batch, kernel = data.draw(st.integers(1, 2)), data.draw(st.sampled_from((1, 2)))
    dtype = data.draw(st.sampled_from((torch.float32, torch.float64, torch.bfloat16)))
    image = data.draw(laid_out((batch, 2 * groups, *(5,) * rank), dtype))
    transposed = data.draw(st.booleans())
    weight = data.draw(laid_out((2 * groups, 2, *(kernel,) * rank), dtype))
    spec = ([data.draw(st.integers(1, 2))], [data.draw(st.integers(0, 1))], [data.draw(st.integers(1, 2))])
    rest = (transposed, [0], groups)
    holds(aten.convolution, image, weight, None, *spec, *rest)
    try:
        result = aten.convolution(image, weight, None, *spec, *rest)
    except RuntimeError:
        return
    grad = data.draw(laid_out(tuple(result.shape), dtype))
    holds(aten.convolution_backward, grad, image, weight, [result.shape[1]], *spec, *rest, [True, True, True])


@RUNS
@given(tensor=tensors(FLOATS), others=st.lists(tensors(FLOATS), max_size=2))
def test_lists_of_tensors(tensor, others):
    several = [tensor, *others]
    holds(torch._foreach_sqrt, several)
    holds(torch._foreach_add, several, several, alpha=2)
    holds(torch._foreach_mul, several, 2)
    holds(torch._foreach_div, several, [2.0] * len(several))
    holds(torch._foreach_addcmul, several, several, several, 2)
    holds(torch._foreach_lerp, several, several, 0.5)
    holds(torch._foreach_norm, several)
    holds(torch._foreach_maximum, several, 0)


@RUNS
@given(st.data())
def test_normalisations(data):
    shape = (data.draw(st.integers(0, 2)), 4, data.draw(st.integers(0, 3)), 3)
    dtype = data.draw(st.sampled_from(FLOATS))
    image = data.draw(laid_out(shape, dtype)).requires_grad_()
    wide = data.draw(st.sampled_from((dtype, torch.float32)))
    weight = data.draw(st.sampled_from((None, torch.ones(4, dtype=wide, requires_grad=True))))
    holds(lambda: torch.nn.functional.layer_norm(image, shape[2:]).sum().backward())
    holds(lambda: torch.nn.functional.group_norm(image, 2, weight, weight).sum().backward())
    holds(lambda: torch.nn.functional.rms_norm(image, shape[2:]).sum().backward())
    holds(torch.nn.functional.batch_norm, image, torch.zeros(4), torch.ones(4), weight, weight, True)
    holds(torch.nn.functional.batch_norm, image, torch.zeros(4), torch.ones(4), weight, weight, False)
    holds(torch.nn.functional.instance_norm, image)


@RUNS
@given(st.data())
def test_bags(data):
    rows, bags = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    indices, offsets = torch.zeros(rows, dtype=torch.int64), torch.zeros(bags, dtype=torch.int64)
    with_last, mode = data.draw(st.booleans()), data.draw(st.integers(0, 2))
    weights = torch.ones(rows) if mode == 0 and data.draw(st.booleans()) else None
    if with_last:
        offsets[-1] = rows
    table = data.draw(laid_out((2, 3), torch.float32))
    holds(aten._embedding_bag, table, indices, offsets, False, mode, False, weights, with_last)


@RUNS
@given(st.data())
def test_jagged_rows(data):
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    rest = data.draw(st.sampled_from(((2,), (1, 3))))
    values = data.draw(laid_out((sum(lengths), *rest), torch.float32))
    dense = data.draw(laid_out((len(lengths), 3, *rest), torch.float32))
    holds(aten._jagged_to_padded_dense_forward, values, [offsets], [3], 0.5)
    holds(aten._padded_dense_to_jagged_forward, dense, [offsets], sum(lengths))


@RUNS
@given(st.data())
def test_attention(data):
    batch, heads, length, keys, width = (data.draw(st.integers(1, 3)) for _ in range(5))
    dtype = data.draw(st.sampled_from(FLOATS))
    query = data.draw(laid_out((batch, heads, length, width), dtype)).requires_grad_()
    key, value = (data.draw(laid_out((batch, heads, keys, width), dtype)) for _ in range(2))
    mask = data.draw(st.sampled_from((None, torch.ones(length, keys, dtype=torch.bool))))
    weighs, averages = data.draw(st.booleans()), data.draw(st.booleans())
    rows, ones = query[:, 0].detach().repeat(1, 1, heads), torch.ones(3 * heads * width, heads * width, dtype=dtype)
    square, bias = ones[: heads * width], ones[:, 0].contiguous()
    holds(aten._native_multi_head_attention, rows, rows, rows, heads * width, heads, ones, bias, square,
          bias[: heads * width], None, weighs, averages)  # fmt: skip
    call = torch.nn.functional.scaled_dot_product_attention
    holds(lambda: call(query, key, value, mask).sum().backward())
    holds(lambda: call(query, key, value, is_causal=True).sum().backward())
