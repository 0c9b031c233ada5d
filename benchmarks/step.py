"""What does an optimizer step cost? DASGrad against torch's fused Adam(amsgrad=True), interleaved in one process."""

from typing import Any

import torch
from torch import nn

import dasgrad
from benchmarks import compare_calls


def models() -> dict[str, nn.Module]:
    """Logistic regression, a multi-layer perceptron, the paper's CNN and a small transformer."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return {
        "logistic regression": nn.Linear(784, 10),
        "MLP": nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)),
        "CNN": nn.Sequential(
            nn.Conv2d(3, 64, 5, padding=2),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.Linear(64 * 8 * 8, 384),
            nn.Linear(384, 192),
            nn.Linear(192, 10),
        ),
        "transformer": nn.Sequential(
            nn.Embedding(1000, 64), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 2)
        ),
    }


def run() -> list[dict[str, Any]]:
    """One row a model: median seconds of a step of both, and the median of the rounds' ratios."""
    torch.set_num_threads(1)
    rows = []
    for name, model in models().items():
        params = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        others = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        for p in (*params, *others):
            p.grad = torch.randn_like(p)
        ours = dasgrad.DASGrad(params, lr=1e-3)
        peer = torch.optim.Adam(others, lr=1e-3, amsgrad=True, fused=True)
        name_of_peer = "torch.optim.Adam(amsgrad=True, fused=True)"
        rows.append(compare_calls(f"seconds a step, {name}", name_of_peer, ours.step, peer.step))
    return rows
