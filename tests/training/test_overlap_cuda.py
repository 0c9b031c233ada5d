"""Scoring beside training on a GPU, on a stream of its own."""

import pytest
import torch
from torch import nn

import dasgrad
import helpers
from training.overlap_runs import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none")


def on_cuda(overlap, width=512, data_on="cuda"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    model = model.cuda()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20_000, 64, generator=generator)
    targets = inputs.sum(1) + torch.where(torch.arange(20_000) % 50 == 0, 20.0, 0.1)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=1e-3)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    loader = dasgrad.AdaptiveLoader(
        (inputs.to(data_on), targets.to(data_on)),
        64,
        scorer=scorer,
        refresh=10,
        overlap=overlap,
        device="cuda",
        scoring_chunk_size=2048,
    )
    return model, optimizer, loader


@pytest.mark.parametrize("data_on", ["cuda", "cpu"])
def test_scores_on_a_side_stream_are_those_of_the_snapshot(data_on):
    """The model is overwritten as soon as scoring starts: what is not ordered between streams shows in the scores."""
    model, optimizer, loader = on_cuda(overlap=5, data_on=data_on)
    for _ in range(3):
        train(model, optimizer, loader, 1)
        expected = loader.scorer.score_dataset(loader.dataset, 2048)
        kept = [p.detach().clone() for p in model.parameters()]
        torch.cuda._sleep(20_000_000)  # the snapshot itself is still to be taken when scoring starts
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.5)
            for p, k in zip(model.parameters(), kept, strict=True):
                p.copy_(k)
        loader.rescore_beside(loader.scorer, 5)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(float("nan"))
        scored = loader.take_effect(now=True)
        torch.testing.assert_close(scored.scores, expected, rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            for p, k in zip(model.parameters(), kept, strict=True):
                p.copy_(k)
        del scored


def test_runs_on_the_gpu_can_be_repeated():
    drawn = [train(*on_cuda(overlap=5), 60) for _ in range(2)]
    assert torch.equal(drawn[0][:, 0], drawn[1][:, 0])
    torch.testing.assert_close(drawn[0][:, 1], drawn[1][:, 1])
    assert drawn[0][:, 1].unique().numel() > 100


def test_random_numbers_of_the_gpu_are_left_alone():
    def run(overlap, refresh):
        model, optimizer, loader = on_cuda(overlap)
        loader._schedule.interval = refresh
        torch.cuda.manual_seed(3)
        found = []
        train(model, optimizer, loader, 14, lambda: found.append(torch.rand(3, device="cuda")))
        return torch.stack(found)

    assert torch.equal(run(5, 10), run(0, 1000))


def test_memory_on_the_gpu_does_not_grow_from_refresh_to_refresh():
    model, optimizer, loader = on_cuda(overlap=5)
    train(model, optimizer, loader, 40)
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    train(model, optimizer, loader, 100)
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() <= 1.1 * before + 2**22
