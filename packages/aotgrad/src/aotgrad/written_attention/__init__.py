"""Attention that a program writes out, as one call of `scaled_dot_product_attention`.

    before    scores  = q @ k^T                       a product: matmul, bmm, baddbmm, einsum
              scores  = step(scores)*                 scaled, a mask added or filled in, cast, seen in another shape
              weights = dropout(softmax(scores))
              out     = weights @ v
    after     out     = aotgrad.written_attention(q, k, v, step*)

The rewrite works on the Capture, so that the gradient is the fused kernel's own. `match` finds the calls, `site` says
whether they may be replaced, `meaning` is what the new call computes.
"""

from __future__ import annotations

from aotgrad.written_attention.choice import Choice
from aotgrad.written_attention.meaning import written_attention
from aotgrad.written_attention.rewrite import fuse_attention
from aotgrad.written_attention.site import TARGET

__all__ = ["TARGET", "Choice", "fuse_attention", "written_attention"]
