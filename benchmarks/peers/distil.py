"""Distillation in PyTorch: a hidden layer of given width, or learnable cubic-spline responses; Adam on the answers.

Both have an affine part of their own. The rate falls as a cosine over the time allowed.
"""

from __future__ import annotations

import math

import job
import torch
from torch import nn

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "gelu": nn.functional.gelu}


class Hidden(nn.Module):
    def __init__(self, d: int, width: int, outputs: int, activation: str) -> None:
        super().__init__()
        self.inner, self.outer, self.affine = nn.Linear(d, width), nn.Linear(width, outputs), nn.Linear(d, outputs)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.activation(self.inner(x))) + self.affine(x)

    def found(self) -> tuple[torch.Tensor, torch.Tensor]:
        w = self.inner.weight.detach()
        return w, w.norm(dim=1) * self.outer.weight.detach().norm(dim=0)


class Splines(nn.Module):
    """Σ_i Σ_k c_ik B_k(v_i·x), uniform cubic B-splines on [−R, R]; c_ik is a vector of the outputs."""

    def __init__(self, d: int, width: int, outputs: int, radius: float, intervals: int) -> None:
        super().__init__()
        self.v, self.affine = nn.Parameter(torch.randn(width, d)), nn.Linear(d, outputs)
        self.c = nn.Parameter(0.1 * torch.randn(width, intervals + 3, outputs))
        self.radius, self.intervals = radius, intervals

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x @ nn.functional.normalize(self.v, dim=1).T
        u = (z / self.radius + 1.0) * (0.5 * self.intervals)
        k = u.detach().floor().clamp(0, self.intervals - 1).long()
        t = u - k
        weights = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
        at = k + torch.arange(len(self.c)) * self.c.shape[1]
        flat = self.c.reshape(-1, self.c.shape[2])
        if flat.shape[1] == 1:  # half the time of the general case
            values = sum(w * flat[:, 0][at + j] for j, w in enumerate(weights)).sum(1, keepdim=True)
        else:
            values = sum((w[..., None] * flat[at + j]).sum(1) for j, w in enumerate(weights))
        return values / 6.0 + self.affine(x)

    def found(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.v.detach(), self.c.detach().diff(n=2, dim=1).pow(2).sum((1, 2)).sqrt()


def begun():
    """The task, on one thread and seeded; a first step comes before it, so that what PyTorch loads on demand is not on
    the clock.
    """
    p = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([p])
    p.sum().backward()
    optimizer.step()
    task = job.read()
    torch.set_num_threads(1)
    torch.manual_seed(task.told["seed"])
    return task


def main() -> None:
    task = begun()
    settings, told = task.settings, task.told
    X, Y = torch.tensor(task.X).float(), torch.tensor(task.Y).float()
    shape, Y = Y.shape[1:], Y.reshape(len(Y), -1)
    mean, spread = Y.mean(0), (Y - Y.mean(0)).pow(2).mean().sqrt()
    Y = (Y - mean) / spread
    d, p, width = X.shape[1], Y.shape[1], settings["times"] * told["features"]
    if settings["response"] == "spline":
        model: Hidden | Splines = Splines(d, width, p, told["radius"], settings["intervals"])
    else:
        model = Hidden(d, width, p, settings["response"])
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
    while (passed := task.passed) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = settings["lr"] * 0.5 * (1.0 + math.cos(math.pi * passed))
        rows = torch.randint(len(X), (settings.get("batch", 1024),))
        loss = (model(X[rows]) - Y[rows]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        values = model(torch.tensor(task.T).float()).double() * spread.double() + mean.double()
    directions, strength = model.found()
    found = job.distinct(directions.double().numpy(), strength.numpy(), apart=told["apart"])
    task.answer(found, values.reshape(-1, *shape).numpy())


if __name__ == "__main__":
    main()
