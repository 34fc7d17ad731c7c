"""Attention that a program writes out, as one call of `scaled_dot_product_attention`.

    before    scores  = bmm(q, k^T)
              scores  = step(scores)*                 scaled, a mask added or filled in, cast, seen in another shape
              weights = dropout(softmax(scores))
              out     = bmm(weights, v)
    after     out     = scaled_dot_product_attention(q, k, v, mask)

`match` finds it in the functional ATen of the trace, where torch's many names, writes and views are gone; `site` says
whether and how a kernel may take it, `meaning` what the kernel is given, and `fusion` puts it into the trace, so that
the gradient is the kernel's own.
"""

from __future__ import annotations

from aotgrad.written_attention.fusion import Fusion
from aotgrad.written_attention.multi_head import without_weights
from aotgrad.written_attention.site import Choice

__all__ = ["Choice", "Fusion", "without_weights"]
