"""Scores on a GPU: the numbers of the CPU, no waiting inside a chunk, data read from elsewhere."""

import contextlib
import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dasgrad
from dasgrad.scoring.isolation import untouched
from scoring import problems

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none")


class Text(nn.Module):
    """Embedding, positions, attention, pooling."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(6, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens) + self.positions).mean(1))


def images():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3)
    )


def numbers(*shape):
    return torch.randn(20, *shape, generator=torch.Generator().manual_seed(0))


TARGETS = torch.arange(20) % 3
MODELS = {
    "linear": (lambda: nn.Linear(5, 3), numbers(5)),
    "network": (lambda: nn.Sequential(nn.Linear(5, 80), nn.ReLU(), nn.Linear(80, 3)), numbers(5)),
    "images": (images, numbers(2, 4, 4)),
    "text": (Text, torch.randint(11, (20, 6), generator=torch.Generator().manual_seed(1))),
}


def prepared(name, dtype):
    """A model after two steps on the CPU, its copy on the GPU with the same optimizer state, and the data."""
    build, inputs = MODELS[name]
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    model = problems.seeded(build).to(dtype)
    optimizer = dasgrad.DASGrad(model.parameters(), weight_decay=0.1)
    problems.train(model, optimizer, inputs, TARGETS, steps=2)
    twin = copy.deepcopy(model).cuda()
    twin_optimizer = dasgrad.DASGrad(twin.parameters(), weight_decay=0.1)
    twin_optimizer.load_state_dict(optimizer.state_dict())
    return (model, optimizer), (twin, twin_optimizer), inputs


@contextlib.contextmanager
def no_waiting():
    """Any operation that waits for the device is an error inside."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("options", [{}, {"preconditioner": "frozen"}, {"momentum": True}, {"score": "gradient"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_scores_on_the_gpu_are_those_of_the_cpu(name, dtype, options):
    cpu, gpu, inputs = prepared(name, dtype)
    expected = dasgrad.ExampleScorer(cpu[0], problems.cross_entropy, cpu[1], **options)(inputs, TARGETS)
    scorer = dasgrad.ExampleScorer(gpu[0], problems.cross_entropy, gpu[1], **options)
    found = scorer(inputs.cuda(), TARGETS.cuda())
    assert found.is_cuda
    assert scorer._engine.irregular == {}
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4 if dtype == torch.float32 else 1e-9, atol=0)


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
@pytest.mark.parametrize("name", MODELS)
def test_no_chunk_waits_for_the_device(name, preconditioner):
    _, (model, optimizer), inputs = prepared(name, torch.float32)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, preconditioner=preconditioner)
    data = (inputs.cuda(), TARGETS.cuda())
    with untouched(model):
        score = scorer._chunk_scores()
        expected = score(data)
        with no_waiting():
            found = score(data)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("form", ["tensors", "data set", "pinned"])
def test_data_elsewhere_are_read_chunk_by_chunk(form):
    _, (model, optimizer), inputs = prepared("network", torch.float32)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer)
    expected = scorer(inputs.cuda(), TARGETS.cuda())
    dataset = (inputs, TARGETS)
    if form == "pinned":
        dataset = (inputs.pin_memory(), TARGETS.pin_memory())
    if form == "data set":
        dataset = list(TensorDataset(inputs, TARGETS))
    found = scorer.score_dataset(dataset, chunk_size=3)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_data_on_another_device_than_the_model_are_refused_by_name():
    _, (model, optimizer), inputs = prepared("linear", torch.float32)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer)
    with pytest.raises(ValueError, match=r"must be on the model's device, cuda:0, got cpu"):
        scorer(inputs, TARGETS)
