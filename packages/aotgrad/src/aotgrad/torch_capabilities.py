"""What aotgrad needs of torch beyond its documented interface; see `stagewire.capabilities`."""

from __future__ import annotations

import torch

from stagewire.capabilities import Capabilities, Capability

_ALL = "no program is compiled"
_TRAINING = "no program that needs gradients is compiled"
_BATCHES = "backwards of compiled programs take no batch of gradients"

TORCH = Capabilities(
    torch,
    "aotgrad",

    no_torch_function=Capability(
        "torch._C._disabled_torch_function_impl", "letting torch functions see through traced tensors", _ALL
    ),
    no_modes=Capability(
        "torch.utils._python_dispatch._disable_current_modes", "reading real tensors during a trace",
        "programs with constants of their own are refused",
    ),
    set_grad_enabled=Capability("torch._C._set_grad_enabled", "switching gradients off around writes", _ALL),
    copy_all=Capability("torch._foreach_copy_", "writing several mutated inputs in one call", _ALL),
    run_engine=Capability("torch.autograd.Variable._execution_engine.run_backward", "tracing the backward", _TRAINING),
    keeps_graph=Capability(
        "torch._C._autograd._get_current_graph_task_keep_graph", "freeing saved tensors as the backward runs", _TRAINING
    ),
    is_batched=Capability("torch._C._functorch.is_legacy_batchedtensor", "batches of gradients", _BATCHES),
    enter_batch_level=Capability("torch._C._vmapmode_increment_nesting", "batches of gradients", _BATCHES),
    leave_batch_level=Capability("torch._C._vmapmode_decrement_nesting", "batches of gradients", _BATCHES),
    add_batch_dim=Capability("torch._add_batch_dim", "batches of gradients", _BATCHES),
    remove_batch_dim=Capability("torch._remove_batch_dim", "batches of gradients", _BATCHES),
    increment_version=Capability(
        "torch._C._increment_version", "counting the program's writes of an input",
        "programs that write an input several times are refused", or_else=("torch.autograd.graph.increment_version",),
    ),
    set_versions=Capability(
        "torch._C._autograd._unsafe_set_version_counter", "counting writes of an input that leave its content",
        "programs that write an input very often are refused",
    ),
    set_onednn=Capability(
        "torch._C._set_mkldnn_enabled", "gradients of gradients of LSTMs, which oneDNN's kernel has not",
        "gradients of gradients of LSTMs are refused",
    ),
    choose_attention=Capability(
        "torch._fused_sdp_choice", "which kernel eager takes for attention on a GPU",
        "programs with attention on a GPU are refused", given="torch.version.cuda",
    ),
)  # fmt: skip
