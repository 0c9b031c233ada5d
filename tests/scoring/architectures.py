"""Whole models as people train them, small: the paper's CNN, a ResNet, transformers, an LSTM, a GPT, a BERT."""

import torch
from torch import Tensor, nn


def paper_cnn(channels: int = 3, side: int = 16, width: int = 6) -> nn.Module:
    """Two 5×5 convolutions with max pooling and local response normalisation, two fully connected layers."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
        nn.LocalResponseNorm(4),
        nn.Conv2d(width, width, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.LocalResponseNorm(4),
        nn.MaxPool2d(3, 2, padding=1),
        nn.Flatten(),
        nn.Linear(width * (side // 4) ** 2, 4 * width),
        nn.ReLU(inplace=True),
        nn.Linear(4 * width, 10),
    )


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return self.relu(out)


def resnet(width: int = 4, blocks: int = 1) -> nn.Module:
    """Residual blocks with batch normalisation in eval mode, its statistics not those it starts with."""
    stages: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for k in range(3):
        stages.append(Residual(width * 2 ** max(0, k - 1), width * 2**k, 1 if k == 0 else 2))
        stages.extend(Residual(width * 2**k, width * 2**k, 1) for _ in range(blocks - 1))
    model = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    return model.eval()


class Encoder(nn.Module):
    """Tokens, learnt positions, encoder layers that ignore padding, a mean over what is not padding."""

    def __init__(self, vocabulary: int = 11, width: int = 8, heads: int = 2, layers: int = 2, length: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(1, length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        x = self.tokens(tokens) + self.positions[:, : tokens.shape[1]]
        x = self.layers(x, src_key_padding_mask=padding).masked_fill(padding.unsqueeze(2), 0.0)
        return self.head(x.sum(1) / (~padding).sum(1, keepdim=True))


class LSTMClassifier(nn.Module):
    def __init__(self, vocabulary: int = 11, width: int = 5, hidden: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(2 * hidden, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.tokens(tokens))[0].mean(1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, dim=-1)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    """A decoder whose head is its table of tokens; the loss is the mean over positions."""

    def __init__(self, vocabulary: int = 11, width: int = 8, heads: int = 2, layers: int = 2, length: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def next_token_losses(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)


def bert(width: int = 8, layers: int = 2, vocabulary: int = 11, length: int = 16) -> nn.Module:
    """Hugging Face's BERT with a classifier, randomly initialised."""
    transformers = __import__("transformers")
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=length,
        num_labels=4,
    )
    return transformers.BertForSequenceClassification(config)


def bert_losses(model: nn.Module, data: dict) -> Tensor:
    logits = model(input_ids=data["input_ids"], attention_mask=data["attention_mask"]).logits
    return nn.functional.cross_entropy(logits, data["labels"], reduction="none")
