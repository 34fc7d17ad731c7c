"""torch.distributions in compiled code, with their validation on: one graph each, the numbers that eager gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributions as D
from torch import Tensor, nn

import stagefold

Make = Callable[[Tensor], D.Distribution]
HALF = torch.tensor(0.5)


def rates() -> Tensor:
    torch.manual_seed(0)
    return torch.rand(4, 3) + 0.1


def chances(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True)


def one_hot(x: Tensor) -> Tensor:
    return torch.eye(3)[torch.tensor([0, 1, 2, 0])]


def matrix(x: Tensor) -> Tensor:
    return x.T @ x + torch.eye(3)


# name: (the distribution of some rates, a value in its support)
FAMILIES: dict[str, tuple[Make, Callable[[Tensor], Tensor]]] = {
    "Normal": (lambda x: D.Normal(x, x), torch.clone),
    "Bernoulli": (lambda x: D.Bernoulli(chances(x)), lambda x: (x > 0.5).float()),
    "Bernoulli of logits": (lambda x: D.Bernoulli(logits=x), lambda x: (x > 0.5).float()),
    "Categorical": (lambda x: D.Categorical(chances(x)), lambda x: torch.tensor([0, 1, 2, 0])),
    "Categorical of logits": (lambda x: D.Categorical(logits=x), lambda x: torch.tensor([0, 1, 2, 0])),
    "OneHotCategorical": (lambda x: D.OneHotCategorical(chances(x)), one_hot),
    "straight through": (lambda x: D.OneHotCategoricalStraightThrough(chances(x)), one_hot),
    "relaxed": (lambda x: D.RelaxedOneHotCategorical(HALF, chances(x)), chances),
    "MultivariateNormal": (lambda x: D.MultivariateNormal(x, matrix(x)), torch.clone),
    "MultivariateNormal of a factor": (lambda x: D.MultivariateNormal(x, scale_tril=torch.eye(3)), torch.clone),
    "Independent": (lambda x: D.Independent(D.Normal(x, x), 1), torch.clone),
    "Beta": (lambda x: D.Beta(x, x + 1), chances),
    "Gamma": (lambda x: D.Gamma(x, x), torch.clone),
    "Dirichlet": (lambda x: D.Dirichlet(x), chances),
    "Poisson": (lambda x: D.Poisson(x), lambda x: torch.ones(4, 3)),
    "Laplace": (lambda x: D.Laplace(x, x), torch.clone),
    "Uniform": (lambda x: D.Uniform(x, x + 1), lambda x: x + 0.5),
    "Exponential": (lambda x: D.Exponential(x), torch.clone),
    "StudentT": (lambda x: D.StudentT(x, x, x), torch.clone),
    "TransformedDistribution": (
        lambda x: D.TransformedDistribution(D.Normal(x, x), [D.TanhTransform(), D.AffineTransform(1.0, 2.0)]),
        lambda x: torch.full((4, 3), 1.5),
    ),
    "MixtureSameFamily": (
        lambda x: D.MixtureSameFamily(D.Categorical(chances(x)), D.Normal(x, x)),
        lambda x: x[:, 0],
    ),
}


REFERS_WEAKLY = hasattr(D.transforms, "weakref")
"""Before torch 2.13 a transform knows its inverse by a weak reference, which captured code cannot make."""


@pytest.fixture(autouse=True)
def _validated():
    """torch's own compiler switches validation off in a process that uses it."""
    before = D.Distribution._validate_args
    D.Distribution.set_default_validate_args(True)
    yield
    D.Distribution.set_default_validate_args(before)


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probabilities_are_one_graph(name: str) -> None:
    make, support = FAMILIES[name]

    def log_prob(x: Tensor, value: Tensor) -> Tensor:
        return make(x).log_prob(value)

    x = rates()
    fullgraph = not (name in ("relaxed", "TransformedDistribution") and REFERS_WEAKLY)
    found = stagefold.compile(log_prob, fullgraph=fullgraph, backend="eager")(x, support(x))
    torch.testing.assert_close(found, log_prob(x, support(x)))


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_are_eagers(name: str) -> None:
    make, _ = FAMILIES[name]

    def draw(x: Tensor) -> Tensor:
        family = make(x)
        return family.rsample((2,)) if family.has_rsample else family.sample((2,))

    draws = []
    for call in (draw, stagefold.compile(draw, fullgraph=True, backend="eager")):
        torch.manual_seed(5)
        draws.append((call(rates()), torch.rand(2)))
    torch.testing.assert_close(*draws)


@pytest.mark.parametrize("name", ["Normal", "Categorical", "Bernoulli", "MultivariateNormal", "Gamma"])
def test_what_is_outside_of_the_support_raises_as_in_eager(name: str) -> None:
    make, support = FAMILIES[name]

    def log_prob(x: Tensor, value: Tensor) -> Tensor:
        return make(x).log_prob(value)

    compiled = stagefold.compile(log_prob, fullgraph=True)
    x = rates()
    wrong = [(-x - 1, support(x)), (x * float("nan"), support(x)), (x, support(x).float() - 77.5)]
    for arguments in [(x, support(x)), *wrong, (x, support(x))]:
        outcomes = []
        for call in (log_prob, compiled):
            try:
                outcomes.append(call(*arguments))
            except ValueError as error:
                outcomes.append((type(error), str(error)))
        torch.testing.assert_close(*outcomes, rtol=1e-4, atol=1e-5) if isinstance(outcomes[0], Tensor) else None
        assert isinstance(outcomes[0], Tensor) or outcomes[0] == outcomes[1]


class AutoEncoder(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 8)
        self.decode = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        mean, scale = self.encode(self.norm(x)).chunk(2, -1)
        posterior = D.Independent(D.Normal(mean, nn.functional.softplus(scale)), 1)
        prior = D.Independent(D.Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1)
        likelihood = D.Independent(D.Bernoulli(logits=self.decode(posterior.rsample())), 1)
        target = (x > 0).float()
        return (D.kl_divergence(posterior, prior) - likelihood.log_prob(target)).mean()


def proximal_policy_loss(logits: Tensor, old: Tensor, actions: Tensor, advantages: Tensor) -> Tensor:
    policy = D.Categorical(logits=logits)
    ratio = (policy.log_prob(actions) - old).exp()
    clipped = ratio.clamp(0.8, 1.2) * advantages
    return -torch.min(ratio * advantages, clipped).mean() - 0.01 * policy.entropy().mean()


@pytest.mark.parametrize("backend", ["eager", "stagefold"])
def test_a_variational_autoencoder_learns_as_in_eager(backend: str) -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(1)
        model = AutoEncoder()
        x = torch.randn(8, 6)
        call = stagefold.compile(model, fullgraph=True, backend=backend) if compiled else model
        torch.manual_seed(2)
        loss = call(x)
        loss.backward()
        found.append((loss, [p.grad for p in model.parameters()], list(model.buffers())))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", ["eager", "stagefold"])
def test_a_policy_gradient_is_eagers(backend: str) -> None:
    torch.manual_seed(1)
    arguments = (torch.randn(5), torch.randint(0, 4, (5,)), torch.randn(5))
    start = torch.randn(5, 4)
    found = []
    for call in (
        proximal_policy_loss,
        stagefold.compile(proximal_policy_loss, fullgraph=True, backend=backend),
    ):
        logits = start.clone().requires_grad_()
        loss = call(logits, *arguments)
        loss.backward()
        found.append((loss, logits.grad))
    torch.testing.assert_close(*found)


def test_a_failed_validation_draws_nothing() -> None:
    def act(logits: Tensor) -> Tensor:
        return D.Categorical(logits=logits + torch.rand(4)).sample()

    compiled = stagefold.compile(act, fullgraph=True)
    compiled(torch.zeros(2, 4))
    streams = []
    for call in (act, compiled):
        torch.manual_seed(4)
        with pytest.raises(ValueError, match="logits"):
            call(torch.full((2, 4), float("nan")))
        streams.append(torch.rand(3))
    assert torch.equal(*streams)
