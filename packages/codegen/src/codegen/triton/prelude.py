"""What every emitted Triton module begins with: helpers that Triton's language lacks."""

_TEXT = """\
import os

import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.extra.libdevice import fast_dividef, fast_logf

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # which has no library of the device


@triton.jit
def begin(EARLY: tl.constexpr):
    if EARLY:
        gdc_wait()  # until all that ran in front has ended and is seen
        gdc_launch_dependents()  # the kernel behind may be launched, and waits


@triton.jit
def maximum(a, b):
    if a.dtype == tl.float32:  # one instruction
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def minimum(a, b):
    if a.dtype == tl.float32:
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def again(x, nothing):
    # x, of 16 bits, to be widened: `nothing` is 0, which the compiler does not know, else it would keep what it has
    # widened x to before
    if x.dtype == tl.bfloat16:
        return ((x.to(tl.uint16, bitcast=True).to(tl.int32) << 16) | nothing).to(tl.float32, bitcast=True)
    else:
        return (x.to(tl.int16, bitcast=True) | nothing.to(tl.int16)).to(x.dtype, bitcast=True)


@triton.jit
def exponential(x):
    # what is below 2**-126 is 0
    return tl.exp2(x * 1.4426950408889634) if x.dtype == tl.float32 else tl.exp(x)


@triton.jit
def logarithm(x):
    # of what is 0 or at least 1
    return fast_logf(x) if x.dtype == tl.float32 and not INTERPRETED else tl.log(x)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def both(a, b):
    return a & b


@triton.jit
def exclusive(a, b):
    return a ^ b


{first_forms}@triton.jit
def welford(mean_a, squares_a, count_a, mean_b, squares_b, count_b):
    count = count_a + count_b
    delta = mean_b - mean_a
    share = tl.where(count == 0, 0.0, count_b / count)
    infinite = mean_a * (1 - share) + mean_b * share  # where the other formula makes a nan of it
    mean = tl.where(delta - delta == 0, mean_a + delta * share, infinite)
    return mean, squares_a + squares_b + delta * delta * count_a * share, count


@triton.jit
def add_exponentials(top_a, sum_a, top_b, sum_b):
    e = tl.where(top_a == top_b, 1.0, exponential(-tl.abs(top_a - top_b)))  # both may be infinite
    first = top_a > top_b
    return maximum(top_a, top_b), tl.where(first, sum_a, sum_b) + tl.where(first, sum_b, sum_a) * e


# of (what comes before the last, all): a scan of these, begun with (nothing, value), leaves the value itself out
{exclusive_forms}@triton.jit
def before_add_exponentials(top_a, sum_a, all_top_a, all_sum_a, top_b, sum_b, all_top_b, all_sum_b):
    top, sum = add_exponentials(all_top_a, all_sum_a, top_b, sum_b)
    all_top, all_sum = add_exponentials(all_top_a, all_sum_a, all_top_b, all_sum_b)
    return top, sum, all_top, all_sum


@triton.jit
def square_root(x):
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)


@triton.jit
def inverse_root(x):
    if x.dtype != tl.float32:
        return 1.0 / tl.sqrt(x)
    elif INTERPRETED:
        return 1.0 / tl.sqrt_rn(x)
    else:  # as CUDA's rsqrtf
        return tl.inline_asm_elementwise("rsqrt.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def decay(x):
    # exp(-x); what is below 2**-126 is 0
    return tl.exp2(x * -1.4426950408889634)


@triton.jit
def logistic(x):
    if x.dtype != tl.float32:
        return 1.0 / (1.0 + tl.exp(-x))
    elif INTERPRETED:
        return 1.0 / (1.0 + decay(x))
    else:
        return tl.inline_asm_elementwise("rcp.approx.f32 $0, $1;", "=f,f", [1.0 + decay(x)], tl.float32, True, 1)


@triton.jit
def silu(x):
    # whose divisor has no inverse beyond 2**126, where this is 0 instead of -1e-36
    divisor = 1.0 + decay(x)
    return x / divisor if INTERPRETED else fast_dividef(x, divisor)


@triton.jit
def one_plus_tanh(x):
    divisor = 1.0 + tl.exp2(x * -2.885390081777927)
    return 2.0 / divisor if INTERPRETED else fast_dividef(2.0, divisor)


@triton.jit
def tanh_slope(x):
    # 1 - tanh(x)**2
    e = tl.exp2(tl.abs(x) * -2.885390081777927)
    part = 2.0 / (1.0 + e) if INTERPRETED else fast_dividef(2.0, 1.0 + e)
    return e * (part * part)


@triton.jit
def one_plus_erf(x):
    # erfc(w) is exp2(w * p(w)), p having been fitted between 0 and 6: of 1 + erf(x) within 6e-8, and within 2.5e-4 of
    # itself down to x = -6
    w = tl.abs(x)
    p = -3.8853491446388944e-07
    p = p * w + 1.0152743016078603e-05
    p = p * w - 0.0001098526845453307
    p = p * w + 0.0006208621198311448
    p = p * w - 0.0017182420706376433
    p = p * w - 0.0006455709226429462
    p = p * w + 0.028249869123101234
    p = p * w - 0.14850576221942902
    p = p * w - 0.9184087514877319
    p = p * w - 1.6279091835021973
    e = tl.exp2(w * p)
    return tl.where(x < 0, e, 2.0 - e)


@triton.jit
def round_half_even(x):
    r = tl.floor(x)
    d = x - r
    odd = (r - 2 * tl.floor(r * 0.5)) != 0
    return tl.where(tl.abs(x) >= 4503599627370496.0, x, tl.where((d > 0.5) | ((d == 0.5) & odd), r + 1, r))


@triton.jit
def signed_rest(rest, b):
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def floor_divide(a, b, rest):
    q = (a - rest) / b  # as c10::div_floor_floating
    q = tl.where((rest != 0) & ((rest < 0) != (b < 0)), q - 1, q)
    whole = tl.floor(q)
    whole = tl.where(q - whole > 0.5, whole + 1, whole)
    whole = tl.where(q == 0, (a / b) * 0, whole)  # a zero of the quotient's sign
    return tl.where(b == 0, a / b, whole)


@triton.jit
def digamma(x):
    # reflection below 0, recurrence up to 10, then the asymptotic series (Cephes psi)
    y = tl.where(x < 0, 1 - x, x)
    r = 3.141592653589793 * (x - round_half_even(x))
    total = tl.where(x < 0, -3.141592653589793 * tl.cos(r) / tl.sin(r), 0.0)
    for _ in tl.static_range(10):
        total -= tl.where(y < 10, 1 / y, 0.0)
        y = tl.where(y < 10, y + 1, y)
    z = 1 / (y * y)
    p = 8.33333333333333333333e-2
    p = p * z - 2.10927960927960927961e-2
    p = p * z + 7.57575757575757575758e-3
    p = p * z - 4.16666666666666666667e-3
    p = p * z + 3.96825396825396825397e-3
    p = p * z - 8.33333333333333333333e-3
    p = p * z + 8.33333333333333333333e-2
    found = total + tl.log(y) - 0.5 / y - p * z
    found = tl.where((x < 0) & (tl.floor(x) == x), float("nan"), found)
    return tl.where(x == 0, -1 / x, found)


@triton.jit
def integer_floor_divide(a, b):
    q = a // b
    r = a - q * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)


@triton.jit
def integer_remainder(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def check_index(i, size):
    return tl.where(i < 0, 0, tl.where(i >= size, size - 1, i))  # out of range cannot be reported: clamp


@triton.jit
def wrap_index(a, size):
    return check_index(tl.where(a < 0, a + size, a), size)


@triton.jit
def wide_product(factor: tl.constexpr, x):
    product = x.to(tl.uint64) * factor
    return (product >> 32).to(tl.uint32), product.to(tl.uint32)


@triton.jit
def philox_words(seed, offset, thread, call):
    counter = (offset // 4 + call.to(tl.int64)).to(tl.uint64, bitcast=True)
    key = seed.to(tl.uint64, bitcast=True)
    a, b, c = counter.to(tl.uint32), (counter >> 32).to(tl.uint32), thread.to(tl.uint32)
    d = tl.zeros_like(c)
    low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        left, next_d = wide_product(0xD2511F53, a)
        right, next_b = wide_product(0xCD9E8D57, c)
        a, b, c, d = right ^ b ^ low, next_b, left ^ d ^ high, next_d
        low = low + 0x9E3779B9
        high = high + 0xBB67AE85
    return a, b, c, d


@triton.jit
def philox_unit(word):
    return word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def philox_each(seed, offset, element, threads: tl.constexpr, width: tl.constexpr):
    if width == 1:
        turn = element // threads
        thread = element - turn * threads
        call = turn // 4
        number = turn % 4
    else:
        group = element // width
        turn = group // threads
        thread = group - turn * threads
        call = turn * max(width // 4, 1) + element % width // 4
        number = element % width % 4
    a, b, c, d = philox_words(seed, offset, thread, call)
    return philox_unit(tl.where(number < 2, tl.where(number == 0, a, b), tl.where(number == 2, c, d)))


@triton.jit
def philox_fours(seed, offset, first, threads: tl.constexpr, width: tl.constexpr):
    group = first // width
    turn = group // threads
    a, b, c, d = philox_words(seed, offset, group - turn * threads, turn * (width // 4) + first % width // 4)
    return tl.join(
        tl.join(philox_unit(a), philox_unit(c)), tl.join(philox_unit(b), philox_unit(d))
    )  # [..., 2, 2], in order


@triton.jit
def philox_rows(fours):
    return tl.reshape(fours, [fours.shape[0], 4 * fours.shape[1]])


@triton.jit
def philox_columns(fours):
    return tl.reshape(tl.permute(fours, (0, 2, 3, 1)), [4 * fours.shape[0], fours.shape[1]])


@triton.jit
def integer_power(a, b):
    result = a * 0 + 1
    base = a
    exponent = b + a * 0
    for _ in range(63):
        result = tl.where((exponent & 1) != 0, result * base, result)
        base = base * base
        exponent = exponent >> 1
    return result


@triton.jit
def in_pairs(x):  # of [rows, 2 n]: each second element, from the first and from the second one on
    return tl.split(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))


@triton.jit
def repeated(x, times: tl.constexpr):  # of [rows, n]: each element so many times
    wide = tl.broadcast_to(x[:, :, None], [x.shape[0], x.shape[1], times])
    return tl.reshape(wide, [x.shape[0], x.shape[1] * times])


@triton.jit
def eight_bits(x):
    high = tl.where(x == x, x.to(tl.int32, bitcast=True) & -65536, 0x7FC00000).to(tl.float32, bitcast=True)
    return high.to(tl.bfloat16), tl.where(tl.abs(x) < float('inf'), x - high, 0.0)


@triton.jit
def product_in_parts(a, b, total):  # of a float32 and a bfloat16: all 24 bits, eight at a time
    rest = a if a.dtype == tl.float32 else b
    for _ in tl.static_range(3):
        part, rest = eight_bits(rest)
        if a.dtype == tl.float32:
            total = tl.dot(part, tl.trans(b), total)
        else:
            total = tl.dot(a, tl.trans(part), total)
    return total
"""

_LARGER_FIRST = """\
@triton.jit
def larger_first(value_a, index_a, value_b, index_b):
    nan_a = value_a != value_a
    nan_b = value_b != value_b
    same = (value_a == value_b) | (nan_a & nan_b)
    keep = ((value_a > value_b) & (value_b == value_b)) | (nan_a & (value_b == value_b)) | (same & (index_a < index_b))
    return tl.where(keep, value_a, value_b), tl.where(keep, index_a, index_b)


"""

_EXCLUSIVE = """\
@triton.jit
def before_{name}(before_a, all_a, before_b, all_b):
    return {name}(all_a, before_b), {name}(all_a, all_b)


"""

PRELUDE = _TEXT.format(
    first_forms=_LARGER_FIRST + _LARGER_FIRST.replace("larger", "smaller").replace("a > value", "a < value"),
    exclusive_forms="".join(_EXCLUSIVE.format(name=name) for name in ("plus", "product", "maximum", "minimum")),
)
