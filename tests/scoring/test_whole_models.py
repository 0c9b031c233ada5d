"""Whole models equal a float64 autograd loop, and which of their parameters rules serve is known."""

import importlib.util

import pytest
import torch

from scoring import architectures, exact
from scoring.exact import integers, numbers
from scoring.problems import cross_entropy

NUMBER = 5
LABELS = torch.arange(NUMBER) % 4


def classified(model, data):
    return cross_entropy(model(data[0]), data[1])


def bert_data():
    mask = torch.arange(7) < torch.tensor([7, 4, 5, 2, 7]).unsqueeze(1)
    return {"input_ids": integers(11, NUMBER, 7), "attention_mask": mask.long(), "labels": LABELS}


WITH_BERT = pytest.param(
    "bert",
    marks=pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
)
TOKENS = integers(10, NUMBER, 6) + 1
PADDED = TOKENS.masked_fill(torch.arange(6) >= torch.tensor([6, 3, 4, 1, 6]).unsqueeze(1), 0)
MODELS = {
    "cnn": (architectures.paper_cnn, (numbers(NUMBER, 3, 16, 16), LABELS), classified),
    "resnet": (architectures.resnet, (numbers(NUMBER, 3, 8, 8), LABELS), classified),
    "encoder": (architectures.Encoder, (PADDED, LABELS), classified),
    "lstm": (architectures.LSTMClassifier, (TOKENS, LABELS), classified),
    "gpt": (architectures.GPT, TOKENS, architectures.next_token_losses),
    "bert": (architectures.bert, bert_data(), architectures.bert_losses),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("options", exact.COMBINATIONS, ids=lambda o: f"{o['preconditioner']}-{o['momentum']}")
@pytest.mark.parametrize("name", [*(name for name in MODELS if name != "bert"), WITH_BERT])
def test_whole_models_are_served_by_rules(name, options, dtype):
    build, data, losses = MODELS[name]
    exact.check(build, data, {**options, "dtype": dtype}, losses)


@pytest.mark.parametrize("name", [*(name for name in MODELS if name != "bert"), WITH_BERT])
def test_whole_models_in_batches_of_none_one_and_many(name):
    build, data, losses = MODELS[name]
    scorer = exact.check(build, data, exact.COMBINATIONS[0], losses)
    whole = scorer(data)
    take = lambda rows: exact.nested.take(data, rows)  # noqa: E731
    assert scorer(take(slice(0, 0))).shape == (0,)
    parts = [scorer(take(slice(0, 1))), scorer(take(slice(1, 3))), scorer(take(slice(3, 5)))]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-10, atol=1e-14)
