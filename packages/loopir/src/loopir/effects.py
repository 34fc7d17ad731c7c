"""Which externs must run, and in program order: those that draw random numbers or belong to the user."""

from __future__ import annotations

RANDOM: frozenset[str] = frozenset(
    [
        "bernoulli",
        "bernoulli_",
        "cauchy_",
        "dropout",
        "exponential",
        "exponential_",
        "geometric_",
        "log_normal_",
        "multinomial",
        "native_dropout",
        "normal",
        "normal_",
        "poisson",
        "random_",
        "rrelu_with_noise",
        "rrelu_with_noise_functional",
        "uniform",
        "uniform_",
        "alpha_dropout",
        "_fused_dropout",
        "binomial",
        "_standard_gamma",
        "_sample_dirichlet",
    ]
)


def is_ordered(target: str) -> bool:
    """Whether calls of `target` keep their order and are never dropped.

    >>> is_ordered("aten.bernoulli.p"), is_ordered("aten.mm.default"), is_ordered("mylib.log.default")
    (True, False, True)
    """
    namespace, _, rest = target.partition(".")
    if namespace != "aten":
        return namespace != "prims"
    name = rest.partition(".")[0]
    attention = name.startswith("_scaled_dot_product") and not name.endswith("backward")
    return name in RANDOM or name.startswith("rand") or attention
