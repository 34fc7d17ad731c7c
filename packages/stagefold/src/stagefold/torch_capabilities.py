"""What stagefold needs of torch beyond its documented interface; see `stagewire.capabilities`."""

from __future__ import annotations

from functools import cache

import torch

from stagewire.capabilities import Capabilities, Capability, is_anything, is_class

TORCH = Capabilities(
    torch,
    "stagefold",
    set_grad_enabled=Capability(
        "torch._C._set_grad_enabled", "changes of the grad mode in graphs", "no program is compiled"
    ),
    tree_flatten=Capability(
        "torch.utils._pytree.tree_flatten",
        "arguments of what a stage in slot capture captured, and of artifacts",
        "there is no such slot, and nothing is exported or loaded",
    ),
    tree_unflatten=Capability("torch.utils._pytree.tree_unflatten", "the arguments of a model", "nothing is exported"),
    containers=Capability(
        "torch.utils._pytree.SUPPORTED_NODES", "results of registered classes", "they are dicts", accepts=is_anything
    ),
)


def torch_release() -> str:
    """The release of torch, without what says for which devices it was built."""
    return str(torch.__version__).partition("+")[0]


@cache
def foreign() -> Capabilities:
    """For back ends written for torch.compile; asking loads torch's own compiler, which nothing else here does."""
    refused = "back ends of torch.compile cannot be called"
    unnamed = "back ends of torch cannot be called by name"
    return Capabilities(
        torch,
        "stagefold",
        tracing=Capability("torch._guards.tracing", "calling back ends as torch.compile does", refused),
        tracing_context=Capability("torch._guards.TracingContext", "calling back ends as torch.compile does", refused),
        deferred_hooks=Capability(
            "torch._dynamo.utils._disable_saved_tensors_hooks_during_tracing",
            "keeping the user's hooks on saved tensors from fake ones",
            refused,
        ),
        fake_mode=Capability("torch._subclasses.FakeTensorMode", "types of a graph's values", refused),
        qualified_name=Capability("torch.fx.node._get_qualified_name", "telling what torch.fx can print", refused),
        shape_env=Capability("torch.fx.experimental.symbolic_shapes.ShapeEnv", "types of a graph's values", refused),
        inductor=Capability(
            "torch._TorchCompileInductorWrapper", 'backend="inductor"', 'there is no backend="inductor"'
        ),
        settings=Capability(
            "torch._dynamo.config",
            "telling that torch's minifier runs",
            "scripts of the minifier lack options",
            accepts=is_anything,
        ),
        look_up=Capability("torch._dynamo.backends.registry.lookup_backend", "back ends by their names", unnamed),
        local_source=Capability("torch._dynamo.source.LocalSource", "symbolic sizes of a graph", refused),
        dynamic_size=Capability(
            "torch.fx.experimental.symbolic_shapes.DimDynamic.DYNAMIC",
            "symbolic sizes of a graph",
            refused,
            accepts=is_anything,
        ),
        higher_order_operator=Capability(
            "torch._ops.HigherOrderOperator", "graphs inside of graphs", "such graphs are refused", accepts=is_class
        ),
        no_modes=Capability(
            "torch.utils._python_dispatch._disable_current_modes", "compiling while torch traces", refused
        ),
        invalid_backend=Capability(
            "torch._dynamo.exc.InvalidBackend", "back ends by their names", unnamed, accepts=is_class
        ),
    )
