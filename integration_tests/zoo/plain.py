"""Models written in plain torch, with makers of their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class UNet(nn.Module):
    """Two levels down and up: batch norm, a transposed convolution, a bilinear resize, joins."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = double_convolution(3, width), double_convolution(width, 2 * width)
        self.middle = double_convolution(2 * width, 4 * width)
        self.grow = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up2, self.up1 = double_convolution(4 * width, 2 * width), double_convolution(3 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        middle = self.middle(F.max_pool2d(second, 2))
        y = self.up2(torch.cat([self.grow(middle), second], 1))
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(self.up1(torch.cat([y, first], 1)))


def double_convolution(inner: int, outer: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inner, outer):
        layers += [nn.Conv2d(channels, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 12, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        states, (hidden, cell) = self.recurrent(x)
        return self.head(states), hidden, cell


class GRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(8, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states, hidden = self.recurrent(x)
        return self.head(states[-1]), hidden


class Mixer(nn.Module):
    """MLP-Mixer: layers across positions and across channels in turn, with dropout."""

    def __init__(self, positions: int = 16, width: int = 24) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.across, self.within = perceptron(positions), perceptron(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.within(self.norms[1](x))
        return self.head(x.mean(1))


def perceptron(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, width))


class Recommender(nn.Module):
    """DLRM: embedding bags of three kinds and a dense part, joined by their dot products."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode=mode) for mode in ("sum", "mean", "max"))
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, dense: torch.Tensor, first: torch.Tensor, offsets: torch.Tensor, rest: torch.Tensor) -> Any:
        x = self.bottom(dense)
        parts = torch.stack([x, self.bags[0](first, offsets), self.bags[1](rest), self.bags[2](rest)], 1)
        rows, columns = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([x, torch.bmm(parts, parts.mT)[:, rows, columns]], 1))


class Diffusion(nn.Module):
    """A block of a diffusion model: group norms, convolutions, an embedding of time, attention over pixels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.time, self.drop = nn.Linear(32, 2 * width), nn.Dropout(0.1)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        angle = t[:, None].to(x.dtype) * torch.exp(-math.log(1e4) * torch.arange(16, dtype=x.dtype) / 16)
        scale, shift = self.time(torch.cat([angle.sin(), angle.cos()], -1))[:, :, None, None].chunk(2, 1)
        h = self.norms[1](self.convolutions[0](F.silu(self.norms[0](x)))) * (1 + scale) + shift
        x = x + self.convolutions[1](self.drop(F.silu(h)))
        heads = self.qkv(self.norms[2](x)).reshape(x.shape[0], 3, 4, x.shape[1] // 4, -1).transpose(-1, -2)
        return x + self.out(F.scaled_dot_product_attention(*heads.unbind(1)).transpose(-1, -2).reshape(x.shape))


class AutoEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(8, 16, 3, 2, 1),
            nn.InstanceNorm2d(16, affine=True), nn.ELU(),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), nn.PReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1),
            nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.decoder(self.encoder(x))
        return y, F.binary_cross_entropy(y, torch.sigmoid(x))


class VAE(nn.Module):
    """Draws its latent values with the reparametrisation trick."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.log_variance = nn.Linear(20, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 20))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = F.softplus(self.encoder(x))
        mean, log_variance = self.mean(h), self.log_variance(h)
        y = self.decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance))
        divergence = -0.5 * torch.mean(1 + log_variance - mean**2 - log_variance.exp())
        return y, F.mse_loss(y, x) + divergence


class Graph(nn.Module):
    """Two rounds of message passing with mean aggregation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 3)])

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ones = torch.ones_like(target, dtype=x.dtype)
        degree = torch.zeros(x.shape[0], dtype=x.dtype).scatter_add(0, target, ones).clamp(min=1)
        for layer in self.layers:
            messages = layer(F.relu(x))[source]
            x = x.new_zeros(x.shape[0], messages.shape[1]).index_add(0, target, messages) / degree[:, None]
        return F.log_softmax(x, -1), torch.cumsum(x, 0), x.topk(2, -1).values


class Temporal(nn.Module):
    """Dilated causal convolutions with weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 3, padding=2**i * 2, dilation=2**i)) for i in range(2)
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self.drop(F.gelu(layer(x)[..., : x.shape[-1]], approximate="tanh"))
        return F.pad(x, (1, 1), mode="replicate")


class Radiance(nn.Module):
    """NeRF: sines of positions, a small network, transmittance as a running product."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(27, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, points: torch.Tensor, distances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = (points[..., None] * 2.0 ** torch.arange(4, dtype=points.dtype)).flatten(-2)
        out = self.layers(torch.cat([points, angles.sin(), angles.cos()], -1))
        opacity = 1 - torch.exp(-F.relu(out[..., 3]) * distances)
        passed = torch.cumprod(torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-10], -1), -1)[:, :-1]
        weights = opacity * passed
        return (weights[..., None] * torch.sigmoid(out[..., :3])).sum(-2), weights.std(-1)


class Translator(nn.Module):
    """nn.Transformer with dropout, its mask declared causal (looking for that would depend on data)."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(16, 4, 1, 1, 32, dropout=0.1, batch_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=target.dtype)
        return self.transformer(source, target, tgt_mask=mask, tgt_is_causal=True)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, Any]]]] = {
    "unet": (UNet, lambda: dict(x=torch.randn(2, 3, 16, 16))),
    "lstm": (LSTM, lambda: dict(x=torch.randn(3, 3, 8))),
    "gru": (GRU, lambda: dict(x=torch.randn(3, 3, 8))),
    "mixer": (Mixer, lambda: dict(x=torch.randn(2, 3, 32, 32))),
    "recommender": (
        Recommender,
        lambda: dict(
            dense=torch.randn(4, 6),
            first=torch.randint(0, 50, (11,)),
            offsets=torch.tensor([0, 3, 3, 7]),
            rest=torch.randint(0, 50, (4, 5)),
        ),
    ),
    "diffusion": (Diffusion, lambda: dict(x=torch.randn(2, 16, 8, 8), t=torch.tensor([3, 700]))),
    "autoencoder": (AutoEncoder, lambda: dict(x=torch.randn(2, 3, 16, 16))),
    "vae": (VAE, lambda: dict(x=torch.randn(5, 20))),
    "graph": (
        Graph,
        lambda: dict(x=torch.randn(9, 6), source=torch.randint(0, 9, (20,)), target=torch.randint(0, 9, (20,))),
    ),
    "temporal": (Temporal, lambda: dict(x=torch.randn(2, 8, 20))),
    "radiance": (Radiance, lambda: dict(points=torch.randn(6, 8, 3), distances=torch.rand(6, 8))),
    "translator": (Translator, lambda: dict(source=torch.randn(2, 7, 16), target=torch.randn(2, 5, 16))),
}
