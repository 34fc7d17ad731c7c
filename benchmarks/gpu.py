"""Eager, torch.compile and stagefold on one NVIDIA GPU, in one run: time of a step, first call, peak memory, error.

    python benchmarks/gpu.py [CASE ...] [--list] [--dtype bfloat16] [--modes default reduce-overhead] [--no-peer]
                             [--beside aotgrad.written_attention=keep] [--dynamic] [--processes 8]

`--modes default max-autotune-no-cudagraphs` adds the columns of both compilers with tuned products; `--dynamic` adds
the programs that leave the sizes open.

A step is forward (inference) or forward and backward of a sum (training). All engines take turns; a figure is the
median of wall-clock times of many steps, the device synchronised around each round. `err` is the relative error of the
result, and of the gradients together, against eager in float64. With `--processes` as many cases compile at once (first
calls then share the processor) and are measured one by one, while all else is stopped.
"""

from __future__ import annotations

import argparse
import copy
import gc
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import several_at_once
import torch
from torch import nn
from torch.nn import functional as F

import stagefold


@dataclass(frozen=True)
class Case:
    """make(): (module or function, inputs in float32 or integers), on the CPU."""

    make: Callable[[], tuple[Any, tuple[Any, ...]]]
    training: bool = False


CASES: dict[str, Case] = {}


def case(name: str, *, training: bool = False) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        CASES[name] = Case(make)
        if training:
            CASES[f"{name} train"] = Case(make, training=True)
        return make

    return register


@case("add 1024")
def _add() -> Any:
    return (lambda a, b: a + b), (torch.randn(1024), torch.randn(1024))


@case("pairs 16")
def _pairs() -> Any:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(nn.Parameter(torch.randn(16, 16) / 4) for _ in range(20))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                x = torch.relu(x @ weight)
            return x

    return Pairs(), (torch.randn(16, 16),)


@case("copy 512M")
def _copy() -> Any:
    """What memory can do: the bandwidth that the other kernels are held against."""
    return (lambda x: x.clone()), (torch.randn(1 << 29),)


@case("pointwise 64M")
def _pointwise() -> Any:
    return (lambda a, b: torch.tanh(a * 2 + b) * torch.sigmoid(b)), (torch.randn(64 << 20), torch.randn(64 << 20))


@case("softmax 16k x 4k", training=True)
def _softmax() -> Any:
    return (lambda x: torch.softmax(x * 1.5, -1)), (torch.randn(16384, 4096),)


@case("layer norm 32k x 1k", training=True)
def _layer_norm() -> Any:
    norm = nn.LayerNorm(1024)
    return norm, (torch.randn(32768, 1024),)


@case("rms norm 32k x 4k", training=True)
def _rms_norm() -> Any:
    weight = nn.Parameter(torch.ones(4096))

    class RMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

    return RMSNorm(), (torch.randn(32768, 4096),)


@case("bias gelu 8k x 16k", training=True)
def _bias_gelu() -> Any:
    return (lambda x, b: F.gelu(x + b)), (torch.randn(8192, 16384), torch.randn(16384))


@case("cross entropy 8k x 50k", training=True)
def _cross_entropy() -> Any:
    return (lambda x, y: F.cross_entropy(x, y)), (torch.randn(8192, 50304), torch.randint(0, 50304, (8192,)))


@case("column sum 64k x 1k")
def _column_sum() -> Any:
    return (lambda x: (x * 2).sum(0)), (torch.randn(65536, 1024),)


@case("total sum 64M")
def _total() -> Any:
    return (lambda x: (x * x).sum()), (torch.randn(64 << 20),)


@case("transpose add 8k")
def _transpose() -> Any:
    return (lambda x, y: x.t() + y), (torch.randn(8192, 8192), torch.randn(8192, 8192))


@case("batch norm relu 64x256x56x56", training=True)
def _batch_norm() -> Any:
    return nn.Sequential(nn.BatchNorm2d(256), nn.ReLU()), (torch.randn(64, 256, 56, 56),)


def _transformer(name: str, batch: int, length: int, **sizes: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{name[0]}Config")(**sizes)
    model = getattr(transformers, name[1])(config)
    return model, (torch.randint(0, config.vocab_size, (batch, length)),)


@case("bert base 8x512", training=True)
def _bert() -> Any:
    return _transformer(("Bert", "BertModel"), 8, 512, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


_GPT2 = {"use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


@case("gpt2 8x512", training=True)
def _gpt2() -> Any:
    return _transformer(("GPT2", "GPT2LMHeadModel"), 8, 512, **_GPT2)


@case("gpt2 dropout 8x512", training=True)
def _gpt2_dropout() -> Any:
    return _transformer(("GPT2", "GPT2LMHeadModel"), 8, 512, use_cache=False)


@case("gpt2 1x64")
def _gpt2_small() -> Any:
    return _transformer(("GPT2", "GPT2LMHeadModel"), 1, 64, **_GPT2)


@case("llama 4x1024", training=True)
def _llama() -> Any:
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
    return _transformer(("Llama", "LlamaForCausalLM"), 4, 1024, use_cache=False, vocab_size=32000, **sizes)


def _timm(name: str, batch: int) -> Any:
    import timm

    return timm.create_model(name, pretrained=False), (torch.randn(batch, 3, 224, 224),)


@case("resnet50 32", training=True)
def _resnet() -> Any:
    return _timm("resnet50", 32)


@case("convnext_tiny 32", training=True)
def _convnext() -> Any:
    return _timm("convnext_tiny", 32)


@case("vit_base 32", training=True)
def _vit() -> Any:
    return _timm("vit_base_patch16_224", 32)


@case("mobilenetv3 32", training=True)
def _mobilenet() -> Any:
    return _timm("mobilenetv3_large_100", 32)


@case("efficientnet_b0 32", training=True)
def _efficientnet() -> Any:
    return _timm("efficientnet_b0", 32)


@case("swin_tiny 32", training=True)
def _swin() -> Any:
    return _timm("swin_tiny_patch4_window7_224", 32)


@case("mixer_b16 32", training=True)
def _mixer() -> Any:
    return _timm("mixer_b16_224", 32)


@case("densenet121 32", training=True)
def _densenet() -> Any:
    return _timm("densenet121", 32)


@case("regnety_008 32", training=True)
def _regnet() -> Any:
    return _timm("regnety_008", 32)


@case("deit3_small 32", training=True)
def _deit() -> Any:
    return _timm("deit3_small_patch16_224", 32)


@case("distilbert 8x512", training=True)
def _distilbert() -> Any:
    return _transformer(("DistilBert", "DistilBertForMaskedLM"), 8, 512, dropout=0.0, attention_dropout=0.0)


@case("opt 4x512", training=True)
def _opt() -> Any:
    return _transformer(("OPT", "OPTForCausalLM"), 4, 512, use_cache=False, dropout=0.0, attention_dropout=0.0)


@case("t5 small 8x256", training=True)
def _t5() -> Any:
    import transformers

    class T5(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.T5ForConditionalGeneration(
                transformers.T5Config(dropout_rate=0.0, use_cache=False)
            )

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=x, decoder_input_ids=y).logits

    return T5(), (torch.randint(0, 32128, (8, 256)), torch.randint(0, 32128, (8, 128)))


@case("whisper tiny 8", training=True)
def _whisper() -> Any:
    import transformers

    class Whisper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4}
            heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
            ffn = {"encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}
            config = transformers.WhisperConfig(use_cache=False, dropout=0.0, **sizes, **heads, **ffn)
            self.model = transformers.WhisperForConditionalGeneration(config)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.model(input_features=x, decoder_input_ids=y).logits

    return Whisper(), (torch.randn(8, 80, 3000), torch.randint(0, 51865, (8, 64)))


@case("electra 8x512", training=True)
def _electra() -> Any:
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return _transformer(("Electra", "ElectraModel"), 8, 512, **none)


@case("unet 8x128", training=True)
def _unet() -> Any:
    def block(a: int, b: int) -> nn.Module:
        one = (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
        return nn.Sequential(*one, nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            wide = (32, 64, 128, 256)
            self.down = nn.ModuleList(block(a, b) for a, b in zip((3, *wide), wide, strict=False))
            self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(wide))
            self.merge = nn.ModuleList(block(2 * a, a) for a in wide[:-1])
            self.head = nn.Conv2d(32, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            skips = []
            for down in self.down:
                x = down(x if not skips else F.max_pool2d(x, 2))
                skips.append(x)
            for up, merge, skip in zip(reversed(self.up), reversed(self.merge), reversed(skips[:-1]), strict=True):
                x = merge(torch.cat([up(x), skip], 1))
            return self.head(x)

    return UNet(), (torch.randn(8, 3, 128, 128),)


@case("diffusion block 8", training=True)
def _diffusion() -> Any:
    class Block(nn.Module):
        def __init__(self, c: int = 256) -> None:
            super().__init__()
            self.n1, self.c1 = nn.GroupNorm(32, c), nn.Conv2d(c, c, 3, padding=1)
            self.n2, self.c2 = nn.GroupNorm(32, c), nn.Conv2d(c, c, 3, padding=1)
            self.time = nn.Linear(512, 2 * c)
            self.n3, self.qkv, self.out = nn.GroupNorm(32, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, 1)
            h = self.c1(F.silu(self.n1(x)))
            x = x + self.c2(F.silu(self.n2(h) * (1 + scale) + shift))
            b, c, height, width = x.shape
            q, k, v = self.qkv(self.n3(x)).view(b, 3, 4, c // 4, height * width).transpose(-1, -2).unbind(1)
            y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, height, width)
            return x + self.out(y)

    return Block(), (torch.randn(8, 256, 32, 32), torch.randn(8, 512))


@case("dlrm 4096", training=True)
def _dlrm() -> Any:
    class DLRM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(100_000, 64, mode="sum") for _ in range(26))
            self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
            self.top = nn.Sequential(nn.Linear(27 * 13 + 64, 512), nn.ReLU(), nn.Linear(512, 1))
            self.register_buffer("pairs", torch.tril_indices(27, 27, -1), persistent=False)

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            dense = self.bottom(x)
            rows = torch.stack([dense, *(table(ids[:, k]) for k, table in enumerate(self.tables))], 1)
            products = (rows @ rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
            return torch.sigmoid(self.top(torch.cat([dense, products], 1)))

    return DLRM(), (torch.randn(4096, 13), torch.randint(0, 100_000, (4096, 26, 4)))


def _written_out(batch: int, heads: int, length: int, form: str) -> Any:
    """Attention written out: nothing but the products and a softmax, a causal mask, or a bias that has a gradient."""

    class WrittenOut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(1, heads, length, length)) if form == "biased" else None
            self.register_buffer("mask", torch.ones(length, length).tril()[None, None], persistent=False)

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            scores = (q @ k.transpose(-2, -1)) * q.size(-1) ** -0.5
            if self.bias is not None:
                scores = scores + self.bias
            if form == "masked":
                scores = scores.masked_fill(self.mask == 0, float("-inf"))
            elif form == "causal":
                scores = scores.masked_fill(later(length, q.device), float("-inf"))
            return F.softmax(scores, dim=-1) @ v

    def later(length: int, device: torch.device) -> torch.Tensor:
        return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)

    return WrittenOut(), tuple(torch.randn(batch, heads, length, 64) for _ in range(3))


for _form in ("plain", "masked", "causal", "biased"):
    for _sizes in ((8, 12, 512), (4, 16, 2048)):
        case(f"written-out attention, {_form} {_sizes}", training=True)(partial(_written_out, *_sizes, _form))


@case("lstm 32x128", training=True)
def _lstm() -> Any:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.lstm, self.head = nn.Embedding(10_000, 256), nn.LSTM(256, 256, 2), nn.Linear(256, 64)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.embed(ids))[0])

    return Tagger(), (torch.randint(0, 10_000, (128, 32)),)


def first_tensor(result: Any) -> torch.Tensor:
    """The tensor that a result begins with."""
    return (
        result
        if isinstance(result, torch.Tensor)
        else next(iter(result.values() if hasattr(result, "values") else result))
    )


def stepper(call: Any, inputs: tuple[Any, ...], training: bool) -> Callable[[], torch.Tensor]:
    """One step."""
    if not training:

        def step() -> torch.Tensor:
            with torch.no_grad():
                return first_tensor(call(*inputs))

    else:
        leaves = [x for x in inputs if x.requires_grad]
        owner = getattr(call, "__self__", call)
        parameters = list(owner.parameters()) if isinstance(owner, nn.Module) else []

        def step() -> torch.Tensor:
            for leaf in (*leaves, *parameters):
                leaf.grad = None
            result = first_tensor(call(*inputs))
            result.float().sum().backward()
            return result

    return step


def gradients(call: Any, inputs: tuple[Any, ...]) -> list[torch.Tensor | None]:
    """Those of the last step; None for what it did not reach."""
    owner = call if isinstance(call, nn.Module) else None
    return [leaf.grad for leaf in (*inputs, *(owner.parameters() if owner is not None else ()))]


def error(found: list[Any], exact: list[Any]) -> str:
    """Relative errors, by norms, of the result and of all gradients together."""
    squares = [[0.0, 0.0], [0.0, 0.0]]
    for place, (a, b) in enumerate(zip(found, exact, strict=True)):
        if b is not None:
            row = squares[place > 0]
            row[0] += float((a.double() - b).square().sum())
            row[1] += float(b.square().sum())
    return " ".join(f"{(off / size) ** 0.5:.1e}" for off, size in squares if size)


def timed(step: Callable[[], Any], count: int) -> float:
    """Seconds of one step, of a round of `count`."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def medians(steps: dict[str, Callable[[], Any]], count: int) -> dict[str, float]:
    """Seconds of a step of each engine: medians of rounds of `count` in which all take turns."""
    rounds: dict[str, list[float]] = {engine: [] for engine in steps}
    for _ in range(7):
        for engine, step in steps.items():
            rounds[engine].append(timed(step, count))
    return {engine: statistics.median(values) for engine, values in rounds.items()}


def run(name: str, dtype: torch.dtype, engines: dict[str, Callable[[Any], Any]], seconds: float) -> None:
    """Print one case."""
    one = CASES[name]
    torch.manual_seed(0)
    original, inputs = one.make()
    cast = [x.cuda().to(dtype) if x.is_floating_point() else x.cuda() for x in inputs]
    needs = one.training and not isinstance(original, nn.Module)
    if isinstance(original, nn.Module):
        original = original.cuda().to(dtype).train(one.training)
        needs = one.training and cast[0].is_floating_point()
    results, steps, first, peak = {}, {}, {}, {}
    for engine, wrap in engines.items():
        given = tuple(x.detach().clone().requires_grad_(needs and x.is_floating_point()) for x in cast)
        module = copy.deepcopy(original) if isinstance(original, nn.Module) else original
        gc.collect()
        torch.cuda.empty_cache()
        try:
            call = wrap(module)
            step = stepper(call, given, one.training)
            torch.cuda.synchronize()
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            first[engine] = time.perf_counter() - start
            timed(step, 3)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            result = step().detach().clone()
            torch.cuda.synchronize()
            peak[engine] = torch.cuda.max_memory_allocated() - before
            results[engine] = [result, *(gradients(module, given) if one.training else ())]
            steps[engine] = step
        except Exception as failure:
            print(f"  {engine}: {type(failure).__name__}: {str(failure)[:300]}", flush=True)
    exact = exact_result(original, cast, one.training, needs, dtype)
    with several_at_once.alone():
        count = max(3, min(200, int(seconds / 7 / timed(steps["eager"], 3))))
        middle = medians(steps, count)
    for engine, value in middle.items():
        err = "" if exact is None else f"err {error(results[engine], exact)}"
        print(
            f"{name:28s} {engine:16s} {value * 1e6:10.1f} us  eager/it {middle['eager'] / value:5.2f}"
            f"  first {first[engine]:6.2f} s  peak {peak[engine] / 2**20:8.1f} MiB  {err}",
            flush=True,
        )


def exact_result(original: Any, cast: list[Any], training: bool, needs: bool, dtype: torch.dtype) -> Any:
    """Result and gradients in float64; None where that does not fit or is not supported."""
    given = tuple(
        x.detach().double().requires_grad_(needs) if x.is_floating_point() else x.detach().clone() for x in cast
    )
    module = copy.deepcopy(original).double() if isinstance(original, nn.Module) else original
    try:
        result = stepper(module, given, training)().detach()
    except (RuntimeError, NotImplementedError) as failure:
        print(f"  no float64: {str(failure)[:100]}")
        return None
    return [result, *(gradients(module, given) if training else ())]


def engines_of(arguments: argparse.Namespace) -> dict[str, Callable[[Any], Any]]:
    """What each engine makes of a module or a function, eager first."""
    engines: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f}
    for mode in arguments.modes:
        suffix = "" if mode == "default" else f" {mode}"
        if not arguments.no_peer:
            engines[f"torch{suffix}"] = lambda f, mode=mode: torch.compile(f, mode=mode)
        engines[f"ours{suffix}"] = lambda f, mode=mode: stagefold.compile(f, mode=mode)
        if arguments.dynamic:
            engines[f"ours{suffix} dynamic"] = lambda f, mode=mode: stagefold.compile(f, mode=mode, dynamic=True)
    for text in arguments.beside:
        key, _, value = text.partition("=")
        engines[value] = lambda f, key=key, value=value: stagefold.compile(f, options={key: value})
    return engines


def run_one(arguments: argparse.Namespace, name: str) -> None:
    torch._dynamo.reset()
    run(name, getattr(torch, arguments.dtype), engines_of(arguments), arguments.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--modes", nargs="*", default=["default"])
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument(
        "--beside", action="append", default=[], metavar="OPTION=TEXT", help="ours with this option as well"
    )
    parser.add_argument("--dynamic", action="store_true", help="programs with symbolic sizes as well")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring, for each engine of a case")
    parser.add_argument("--processes", type=int, default=1, help="cases that compile at once")
    arguments = parser.parse_args()
    cases = arguments.cases or list(CASES)
    if arguments.list:
        print("\n".join(CASES))
    elif arguments.processes > 1:
        several_at_once.run_all(partial(run_one, arguments), cases, arguments.processes)
    else:
        for name in cases:
            run_one(arguments, name)


if __name__ == "__main__":
    main()
