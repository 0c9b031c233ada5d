"""Models of the clock's own problems; each comes from a seed and leaves the global random state alone."""

import torch
from torch import Tensor, nn


def make_perceptron(seed: int, num_inputs: int, num_hidden: int) -> nn.Module:
    """One hidden layer, one output."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(num_inputs, num_hidden), nn.ReLU(), nn.Linear(num_hidden, 1))


class Reader(nn.Module):
    """A transformer that classifies texts: embeddings, encoder layers, the mean over words, a linear head."""

    def __init__(self, num_words: int, length: int, width: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words, width, padding_idx=0)
        self.places = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, num_heads, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, words: Tensor) -> Tensor:
        """``[B, length]`` int64, 0 after the end → ``[B, 1]``."""
        # A row of places an example: scores are taken layer by layer and need the examples first.
        places = torch.arange(words.shape[1], device=words.device).expand_as(words)
        hidden: Tensor = self.encoder(self.words(words) + self.places(places))
        there = (words != 0).to(hidden.dtype).unsqueeze(2)
        outputs: Tensor = self.head((hidden * there).sum(1) / there.sum(1).clamp(min=1.0))
        return outputs


def make_reader(seed: int, num_words: int, length: int) -> nn.Module:
    """Two layers of width 128."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Reader(num_words, length, width=128, num_heads=4, num_layers=2)
