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
    def __init__(self, d: int, width: int, activation: str) -> None:
        super().__init__()
        self.inner, self.outer, self.affine = nn.Linear(d, width), nn.Linear(width, 1), nn.Linear(d, 1)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.outer(self.activation(self.inner(x))) + self.affine(x))[:, 0]

    def found(self) -> tuple[torch.Tensor, torch.Tensor]:
        w = self.inner.weight.detach()
        return w, w.norm(dim=1) * self.outer.weight.detach()[0].abs()


class Splines(nn.Module):
    """Σ_i Σ_k c_ik B_k(v_i·x), uniform cubic B-splines on [−R, R]."""

    def __init__(self, d: int, width: int, radius: float, intervals: int) -> None:
        super().__init__()
        self.v, self.affine = nn.Parameter(torch.randn(width, d)), nn.Linear(d, 1)
        self.c = nn.Parameter(0.1 * torch.randn(width, intervals + 3))
        self.radius, self.intervals = radius, intervals

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x @ nn.functional.normalize(self.v, dim=1).T
        u = (z / self.radius + 1.0) * (0.5 * self.intervals)
        k = u.detach().floor().clamp(0, self.intervals - 1).long()
        t = u - k
        weights = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
        at = k + torch.arange(len(self.c)) * self.c.shape[1]
        flat = self.c.reshape(-1)
        values = sum(w * flat[at + j] for j, w in enumerate(weights)) / 6.0
        return values.sum(1) + self.affine(x)[:, 0]

    def found(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.v.detach(), self.c.detach().diff(n=2, dim=1).pow(2).sum(1).sqrt()


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
    mean, spread = Y.mean(), Y.std()
    Y = (Y - mean) / spread
    d, width = X.shape[1], settings["times"] * told["features"]
    if settings["response"] == "spline":
        model: Hidden | Splines = Splines(d, width, told["radius"], settings["intervals"])
    else:
        model = Hidden(d, width, settings["response"])
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
    task.answer(job.distinct(directions.double().numpy(), strength.numpy()), values.numpy())


if __name__ == "__main__":
    main()
