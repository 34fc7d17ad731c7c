"""What is known of externs: which must run in program order (random numbers, calls of the user, assertions), which give
views."""

from __future__ import annotations

from loopir.prim_calls import PRIM_CALLS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RANDOM: frozenset[str] = _words(
    "bernoulli bernoulli_ cauchy_ dropout exponential exponential_ geometric_ log_normal_ multinomial "
    "native_dropout normal normal_ poisson random_ rrelu_with_noise rrelu_with_noise_functional uniform "
    "uniform_ alpha_dropout _fused_dropout binomial _standard_gamma _sample_dirichlet"
)


ASSERTIONS: frozenset[str] = _words("_assert_async _assert_scalar _assert_tensor_metadata _linalg_check_errors")


def is_ordered(target: str) -> bool:
    """Whether calls of `target` keep their order and are never dropped.

    >>> is_ordered("aten.bernoulli.p"), is_ordered("aten.mm.default"), is_ordered("mylib.log.default")
    (True, False, True)
    >>> is_ordered("prims.rand"), is_ordered("prims.sort")
    (True, False)
    """
    namespace, _, rest = target.partition(".")
    if namespace == "prims":
        return rest in PRIM_CALLS and PRIM_CALLS[rest].draws
    if namespace != "aten":
        return True
    name = rest.partition(".")[0]
    attention = name.startswith("_scaled_dot_product") and not name.endswith("backward")
    return name in RANDOM or name in ASSERTIONS or name.startswith("rand") or attention


def is_call(target: str) -> bool:
    """Whether a node is a call of ATen (or of the user) rather than loops.

    >>> is_call("aten.mm.default"), is_call("prims.sort"), is_call("prims.add")
    (True, True, False)
    """
    namespace, _, name = target.partition(".")
    return namespace != "prims" or name in PRIM_CALLS


VIEWS: frozenset[str] = _words(
    "alias as_strided adjoint chunk conj _conj _neg_view contiguous detach diagonal expand expand_as imag "
    "lift_fresh movedim narrow permute real reshape _reshape_alias resolve_conj resolve_neg select slice split "
    "split_with_sizes squeeze t transpose unbind unflatten unfold unsqueeze view view_as view_as_complex "
    "view_as_real"
)


def may_alias(target: str) -> bool:
    """Whether results of `target` may lie in the memory of its operands.

    >>> may_alias("aten._conj.default"), may_alias("aten.mm.default")
    (True, False)
    """
    namespace, _, rest = target.partition(".")
    return namespace == "aten" and rest.partition(".")[0] in VIEWS
