"""Prims that stay calls, nearly all of ATen: sorting, scans, special functions, pooling, random numbers, spectra.

    row ::= prim parameters target keyword*

The table repeats what primops' opset.json says of them (a test compares the two); loopir imports no other stage.
"""

from __future__ import annotations

from typing import NamedTuple


class PrimCall(NamedTuple):
    """The ATen overload of a prim: the parameters go by position, save the `keywords`."""

    parameters: tuple[str, ...]
    target: str
    keywords: tuple[str, ...] = ()


def _row(parameters: str, target: str, keywords: str = "") -> PrimCall:
    full = target if target.startswith("stagefold.") else f"aten.{target}"
    return PrimCall(tuple(parameters.split()), full, tuple(keywords.split()))


PRIM_CALLS: dict[str, PrimCall] = {
    # special
    "i0": _row("x", "i0.default"),
    "i0e": _row("x", "special_i0e.default"),
    "i1": _row("x", "special_i1.default"),
    "i1e": _row("x", "special_i1e.default"),
    "bessel_j0": _row("x", "special_bessel_j0.default"),
    "bessel_j1": _row("x", "special_bessel_j1.default"),
    "bessel_y0": _row("x", "special_bessel_y0.default"),
    "bessel_y1": _row("x", "special_bessel_y1.default"),
    "modified_bessel_i0": _row("x", "special_modified_bessel_i0.default"),
    "modified_bessel_i1": _row("x", "special_modified_bessel_i1.default"),
    "modified_bessel_k0": _row("x", "special_modified_bessel_k0.default"),
    "modified_bessel_k1": _row("x", "special_modified_bessel_k1.default"),
    "scaled_modified_bessel_k0": _row("x", "special_scaled_modified_bessel_k0.default"),
    "scaled_modified_bessel_k1": _row("x", "special_scaled_modified_bessel_k1.default"),
    "spherical_bessel_j0": _row("x", "special_spherical_bessel_j0.default"),
    "airy_ai": _row("x", "special_airy_ai.default"),
    "erfcx": _row("x", "special_erfcx.default"),
    "ndtri": _row("x", "special_ndtri.default"),
    "log_ndtr": _row("x", "special_log_ndtr.default"),
    "zeta": _row("x y", "special_zeta.default"),
    "igamma": _row("x y", "igamma.default"),
    "igammac": _row("x y", "igammac.default"),
    "chebyshev_polynomial_t": _row("x y", "special_chebyshev_polynomial_t.default"),
    "chebyshev_polynomial_u": _row("x y", "special_chebyshev_polynomial_u.default"),
    "chebyshev_polynomial_v": _row("x y", "special_chebyshev_polynomial_v.default"),
    "chebyshev_polynomial_w": _row("x y", "special_chebyshev_polynomial_w.default"),
    "shifted_chebyshev_polynomial_t": _row("x y", "special_shifted_chebyshev_polynomial_t.default"),
    "shifted_chebyshev_polynomial_u": _row("x y", "special_shifted_chebyshev_polynomial_u.default"),
    "shifted_chebyshev_polynomial_v": _row("x y", "special_shifted_chebyshev_polynomial_v.default"),
    "shifted_chebyshev_polynomial_w": _row("x y", "special_shifted_chebyshev_polynomial_w.default"),
    "hermite_polynomial_h": _row("x y", "special_hermite_polynomial_h.default"),
    "hermite_polynomial_he": _row("x y", "special_hermite_polynomial_he.default"),
    "laguerre_polynomial_l": _row("x y", "special_laguerre_polynomial_l.default"),
    "legendre_polynomial_p": _row("x y", "special_legendre_polynomial_p.default"),
    "polygamma": _row("n x", "polygamma.default"),
    "gcd": _row("x y", "gcd.default"),
    "lcm": _row("x y", "lcm.default"),
    "frexp": _row("x", "frexp.Tensor"),
    # random
    "rand": _row("shape dtype", "rand.default", "dtype"),
    "randn": _row("shape dtype", "randn.default", "dtype"),
    "randint": _row("low high shape dtype", "randint.low", "dtype"),
    "randperm": _row("n dtype", "randperm.default", "dtype"),
    "bernoulli": _row("x", "bernoulli.default"),
    "bernoulli_p": _row("x p", "bernoulli.p"),
    "uniform": _row("x low high", "uniform.default"),
    "normal": _row("x mean std", "normal_functional.default"),
    "normal_of": _row("mean std", "normal.Tensor_Tensor"),
    "exponential": _row("x rate", "exponential.default"),
    "cauchy": _row("x median sigma", "cauchy.default"),
    "log_normal": _row("x mean std", "log_normal.default"),
    "geometric": _row("x p", "geometric.default"),
    "poisson": _row("rate", "poisson.default"),
    "binomial": _row("count prob", "binomial.default"),
    "standard_gamma": _row("shape", "_standard_gamma.default"),
    "multinomial": _row("weights count replacement", "multinomial.default"),
    "rrelu": _row("x noise low high training", "rrelu_with_noise_functional.default"),
    "philox_state": _row("count device", "stagefold.philox_state.default"),
    # ordering
    "sort": _row("x stable dim descending", "sort.stable", "stable dim descending"),
    "topk": _row("x k dim largest sorted", "topk.default"),
    "kthvalue": _row("x k dim", "kthvalue.default"),
    "median": _row("x dim", "median.dim"),
    "nanmedian": _row("x dim", "nanmedian.dim"),
    "mode": _row("x dim", "mode.default"),
    "searchsorted": _row("boundaries values out_int32 right", "searchsorted.Tensor", "out_int32 right"),
    "histc": _row("x bins low high", "histc.default"),
    # indexing
    "scatter_reduce": _row("x dim index src reduce include_self", "scatter_reduce.two", "include_self"),
    "index_reduce": _row("x dim index src reduce include_self", "index_reduce.default", "include_self"),
    "put": _row("x index source accumulate", "put.default"),
    "nonzero_static": _row("x size fill_value", "nonzero_static.default", "size fill_value"),
    # windows
    "max_pool2d": _row("x kernel stride padding dilation ceil_mode", "max_pool2d_with_indices.default"),
    "max_pool2d_backward": _row(
        "grad x kernel stride padding dilation ceil_mode indices", "max_pool2d_with_indices_backward.default"
    ),
    "avg_pool2d": _row("x kernel stride padding ceil_mode count_include_pad divisor", "avg_pool2d.default"),
    "avg_pool2d_backward": _row(
        "grad x kernel stride padding ceil_mode count_include_pad divisor", "avg_pool2d_backward.default"
    ),
    "adaptive_avg_pool2d": _row("x size", "_adaptive_avg_pool2d.default"),
    "adaptive_avg_pool2d_backward": _row("grad x", "_adaptive_avg_pool2d_backward.default"),
    "adaptive_max_pool2d": _row("x size", "adaptive_max_pool2d.default"),
    "adaptive_max_pool2d_backward": _row("grad x indices", "adaptive_max_pool2d_backward.default"),
    "fractional_max_pool2d": _row("x kernel size samples", "fractional_max_pool2d.default"),
    "fractional_max_pool2d_backward": _row("grad x kernel size indices", "fractional_max_pool2d_backward.default"),
    "max_pool3d": _row("x kernel stride padding dilation ceil_mode", "max_pool3d_with_indices.default"),
    "max_pool3d_backward": _row(
        "grad x kernel stride padding dilation ceil_mode indices", "max_pool3d_with_indices_backward.default"
    ),
    "avg_pool3d": _row("x kernel stride padding ceil_mode count_include_pad divisor", "avg_pool3d.default"),
    "avg_pool3d_backward": _row(
        "grad x kernel stride padding ceil_mode count_include_pad divisor", "avg_pool3d_backward.default"
    ),
    "adaptive_avg_pool3d": _row("x size", "_adaptive_avg_pool3d.default"),
    "adaptive_avg_pool3d_backward": _row("grad x", "_adaptive_avg_pool3d_backward.default"),
    "adaptive_max_pool3d": _row("x size", "adaptive_max_pool3d.default"),
    "adaptive_max_pool3d_backward": _row("grad x indices", "adaptive_max_pool3d_backward.default"),
    "fractional_max_pool3d": _row("x kernel size samples", "fractional_max_pool3d.default"),
    "fractional_max_pool3d_backward": _row("grad x kernel size indices", "fractional_max_pool3d_backward.default"),
    "max_unpool2d": _row("x indices size", "max_unpool2d.default"),
    "max_unpool3d": _row("x indices size stride padding", "max_unpool3d.default"),
    "col2im": _row("x size kernel dilation padding stride", "col2im.default"),
    # resampling
    "upsample_nearest_backward1d": _row("grad out size scale", "upsample_nearest1d_backward.default"),
    "upsample_nearest_backward2d": _row("grad out size scale_h scale_w", "upsample_nearest2d_backward.default"),
    "upsample_nearest_backward3d": _row("grad out size scale_d scale_h scale_w", "upsample_nearest3d_backward.default"),
    "upsample_nearest_exact_backward1d": _row("grad out size scale", "_upsample_nearest_exact1d_backward.default"),
    "upsample_nearest_exact_backward2d": _row(
        "grad out size scale_h scale_w", "_upsample_nearest_exact2d_backward.default"
    ),
    "upsample_nearest_exact_backward3d": _row(
        "grad out size scale_d scale_h scale_w", "_upsample_nearest_exact3d_backward.default"
    ),
    "upsample_linear_backward1d": _row("grad out size align_corners scale", "upsample_linear1d_backward.default"),
    "upsample_linear_backward2d": _row(
        "grad out size align_corners scale_h scale_w", "upsample_bilinear2d_backward.default"
    ),
    "upsample_linear_backward3d": _row(
        "grad out size align_corners scale_d scale_h scale_w", "upsample_trilinear3d_backward.default"
    ),
    "upsample_cubic_backward2d": _row(
        "grad out size align_corners scale_h scale_w", "upsample_bicubic2d_backward.default"
    ),
    "upsample_linear_aa2d": _row("x out align_corners scale_h scale_w", "_upsample_bilinear2d_aa.default"),
    "upsample_cubic_aa2d": _row("x out align_corners scale_h scale_w", "_upsample_bicubic2d_aa.default"),
    "grid_sample2d": _row("x grid interpolation padding align_corners", "grid_sampler_2d.default"),
    "grid_sample3d": _row("x grid interpolation padding align_corners", "grid_sampler_3d.default"),
    "upsample_linear_aa_backward2d": _row(
        "grad out size align_corners scale_h scale_w", "_upsample_bilinear2d_aa_backward.default"
    ),
    "upsample_cubic_aa_backward2d": _row(
        "grad out size align_corners scale_h scale_w", "_upsample_bicubic2d_aa_backward.default"
    ),
    "grid_sample2d_backward": _row(
        "grad x grid interpolation padding align_corners wanted", "grid_sampler_2d_backward.default"
    ),
    "grid_sample3d_backward": _row(
        "grad x grid interpolation padding align_corners wanted", "grid_sampler_3d_backward.default"
    ),
    # spectra
    "complex": _row("real imag", "complex.default"),
    "view_as_real": _row("z", "view_as_real.default"),
    "view_as_complex": _row("x", "view_as_complex.default"),
    "conj": _row("z", "_conj_physical.default"),
    "fft_r2c": _row("x dims normalization onesided", "_fft_r2c.default"),
    "fft_c2r": _row("z dims normalization last_dim_size", "_fft_c2r.default"),
    "fft_c2c": _row("z dims normalization forward", "_fft_c2c.default"),
    # linalg
    "cholesky": _row("x upper", "linalg_cholesky_ex.default", "upper"),
    "cholesky_solve": _row("b factor upper", "cholesky_solve.default"),
    "cholesky_inverse": _row("factor upper", "cholesky_inverse.default"),
    "inverse": _row("x", "linalg_inv_ex.default"),
    "solve": _row("a b left", "_linalg_solve_ex.default", "left"),
    "solve_triangular": _row(
        "a b upper left unitriangular", "linalg_solve_triangular.default", "upper left unitriangular"
    ),
    "lu_factor": _row("x pivot", "linalg_lu_factor_ex.default", "pivot"),
    "lu_unpack": _row("lu pivots data order", "lu_unpack.default"),
    "lu": _row("x pivot", "linalg_lu.default", "pivot"),
    "lu_solve": _row("lu pivots b left adjoint", "linalg_lu_solve.default", "left adjoint"),
    "eigh": _row("x triangle vectors", "_linalg_eigh.default"),
    "svd": _row("x full vectors", "_linalg_svd.default"),
    "qr": _row("x mode", "linalg_qr.default"),
    "matrix_exp": _row("x", "linalg_matrix_exp.default"),
    "householder_product": _row("x tau", "linalg_householder_product.default"),
    "det": _row("x", "_linalg_det.default"),
    "slogdet": _row("x", "_linalg_slogdet.default"),
    # bags
    "embedding_bag": _row(
        "weight indices offsets scale_grad_by_freq mode sparse weights include_last_offset padding",
        "_embedding_bag.default",
    ),
    "embedding_bag_backward": _row(
        "grad indices offsets bag size largest count scale_grad_by_freq mode sparse weights padding",
        "_embedding_bag_backward.default",
    ),
    "embedding_bag_weights_backward": _row(
        "grad weight indices offsets bag mode padding", "_embedding_bag_per_sample_weights_backward.default"
    ),
    "segment_reduce": _row(
        "x reduce lengths axis unsafe initial", "segment_reduce.default", "lengths axis unsafe initial"
    ),
    "segment_reduce_backward": _row(
        "grad out x reduce lengths axis initial", "_segment_reduce_backward.default", "lengths axis initial"
    ),
    # metrics
    "cdist": _row("x y p mode", "_cdist_forward.default"),
    "cdist_backward": _row("grad x y p distances", "_cdist_backward.default"),
    "euclidean_dist": _row("x y", "_euclidean_dist.default"),
    "pdist": _row("x p", "_pdist_forward.default"),
    "pdist_backward": _row("grad x p distances", "_pdist_backward.default"),
    "ctc_loss": _row("logs targets inputs lengths blank zero_infinity", "_ctc_loss.default"),
    "ctc_loss_backward": _row(
        "grad logs targets inputs lengths loss alpha blank zero_infinity", "_ctc_loss_backward.default"
    ),
    "multilabel_margin_loss": _row("x target reduction", "multilabel_margin_loss_forward.default"),
    "multilabel_margin_loss_backward": _row(
        "grad x target reduction is_target", "multilabel_margin_loss_backward.default"
    ),
}
