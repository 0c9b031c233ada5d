"""The four models that scores are measured on, each with random examples and an optimizer that has taken steps.

A: logistic regression, 784 → 10. B: an MLP, 784 → 256 → 128 → 10. C: the paper's CNN for CIFAR-10, two 5×5
convolutions of 64 channels with 3×3 max pooling and local response normalization, layers of 384 and 192 rectified
units. D: a transformer encoder for classification, 2 layers of width 64, 4 heads, 64 tokens of a vocabulary of 1,000.
Random examples are enough: no method's time depends on their values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import dasgrad

NUM_STEPS, BATCH_SIZE = 5, 128
NUM_TOKENS, VOCABULARY = 64, 1_000
TITLES = {"A": "logistic regression", "B": "MLP", "C": "CNN", "D": "transformer"}


@dataclass(frozen=True)
class Problem:
    """A model, examples, and the optimizer whose metric scores are taken in."""

    key: str
    model: nn.Module
    optimizer: dasgrad.DASGrad
    inputs: Tensor
    targets: Tensor

    @property
    def title(self) -> str:
        """What the model is called in results."""
        return TITLES[self.key]


class TransformerClassifier(nn.Module):
    """Embeddings of tokens and positions, encoder layers, the mean over tokens, a linear head."""

    def __init__(self, width: int = 64, num_heads: int = 4, num_layers: int = 2, num_classes: int = 10) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(NUM_TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, num_heads, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, 64]`` int64 → ``[B, num_classes]``."""
        # One row of positions an example: layer by layer methods, ours and others', need the examples first.
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        hidden: Tensor = self.encoder(self.tokens(tokens) + self.positions(places))
        outputs: Tensor = self.head(hidden.mean(1))
        return outputs


def cifar_cnn() -> nn.Module:
    """The network the paper names after its CIFAR-10 experiment, on whole images of 32×32."""
    # TensorFlow's lrn(depth_radius=4, alpha=0.001/9) sums over 9 channels; torch divides alpha by that number.
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
        nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0),
        nn.MaxPool2d(3, 2, padding=1),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )


def make_model(key: str) -> nn.Module:
    """A fresh model; its parameters come from the global random state."""
    if key == "A":
        return nn.Linear(784, 10)
    if key == "B":
        return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    if key == "C":
        return cifar_cnn()
    if key == "D":
        return TransformerClassifier()
    raise ValueError(f"`make_model(key=...)` must be one of {', '.join(TITLES)}, got {key!r}.")


def make_inputs(key: str, num_examples: int, generator: torch.Generator) -> Tensor:
    """Images with about the mean and spread of standardised ones, or tokens."""
    device = generator.device
    if key == "D":
        return torch.randint(VOCABULARY, (num_examples, NUM_TOKENS), generator=generator, device=device)
    shape = (3, 32, 32) if key == "C" else (784,)
    return torch.randn(num_examples, *shape, generator=generator, device=device)


def build(key: str, num_examples: int, device: torch.device | str = "cpu") -> Problem:
    """A problem after a few training steps, so that the optimizer's metric is not the same everywhere."""
    generator = torch.Generator(device).manual_seed(0)
    inputs = make_inputs(key, num_examples, generator)
    targets = torch.randint(10, (num_examples,), generator=generator, device=device)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make_model(key).to(device)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=1e-3)
    for _ in range(NUM_STEPS):
        rows = torch.randint(num_examples, (BATCH_SIZE,), generator=generator, device=device)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Problem(key, model, optimizer, inputs, targets)
