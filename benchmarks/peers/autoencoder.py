"""A sparse autoencoder on gradients: ReLU codes, an L1 penalty, unit decoder rows; Adam until the time is up."""

from __future__ import annotations

import math

import job
import torch
from distil import begun


def main() -> None:
    task = begun()
    settings, told = task.settings, task.told
    G = torch.tensor(task.G[0::2] - task.G[1::2] if settings["differences"] else task.G - task.G.mean(axis=0))
    G = (G / G.pow(2).sum(1).mean().div(G.shape[1]).sqrt()).float()
    d, k = G.shape[1], settings["times"] * told["features"]
    decoder = torch.nn.functional.normalize(torch.randn(k, d), dim=1).requires_grad_()
    encoder, bias = decoder.detach().clone().requires_grad_(), torch.zeros(k, requires_grad=True)
    optimizer = torch.optim.Adam([encoder, decoder, bias], lr=settings["lr"])
    while (passed := task.passed) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = settings["lr"] * 0.5 * (1.0 + math.cos(math.pi * passed))
        batch = G[torch.randint(len(G), (1024,))]
        unit = torch.nn.functional.normalize(decoder, dim=1)
        code = torch.relu(batch @ encoder.T + bias)
        loss = (code @ unit - batch).pow(2).sum(1).mean() + settings["l1"] * code.sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        strength = torch.relu(G @ encoder.T + bias).mean(0).numpy()
    task.answer(job.distinct(decoder.detach().double().numpy(), strength, apart=told["apart"]))


if __name__ == "__main__":
    main()
