"""Batches of the baselines, and what can be said in a few numbers of how adaptive draws are spread."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

import dasgrad


def reshuffled_indices(num_examples: int, batch_size: int, seed: int, device: str = "cpu") -> Iterator[Tensor]:
    """Batches of passes without replacement, for ever; the same for every method that asks with this seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.split(torch.randperm(num_examples, generator=generator).to(device), batch_size)


def independent_indices(num_examples: int, batch_size: int, seed: int, device: str = "cpu") -> Iterator[Tensor]:
    """Batches drawn uniformly with replacement, for ever; the same for every method that asks with this seed."""
    generator = torch.Generator().manual_seed(seed)
    while True:  # many batches at a time: one transfer to the device serves them all
        yield from torch.randint(num_examples, (64, batch_size), generator=generator).to(device)


def describe_draws(sampler: dasgrad.AdaptiveSampler, staleness: float) -> dict[str, float]:
    """One value for each of `records.DRAW_COLUMNS`."""
    target, weights, probabilities = sampler.target, sampler.weights, sampler.probabilities
    drawn = probabilities[probabilities > 0]
    gain = math.nan
    if sampler.refreshed:
        scores = sampler.scores
        gain = float(target @ scores.square() / (target @ scores).square())
    return {
        "effective_sample_size": float(1.0 / (target @ weights)),
        "largest_weight": float(weights.max()),
        "entropy": float(-(drawn * drawn.log()).sum()),
        "gain": gain,
        "staleness": staleness,
    }
