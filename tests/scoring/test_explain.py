"""The table of how a model is scored."""

import pytest
import torch
from torch import nn

import dasgrad
from scoring import problems

INPUTS, TARGETS = problems.classification()


class Mixed(nn.Module):
    """A layer with a rule, one that is called twice, a parameter no rule knows, and one that is not used."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.twice = nn.Linear(3, 3, bias=False)
        self.shift = nn.Parameter(torch.zeros(3))
        self.idle = nn.Linear(3, 3, bias=False)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        x = self.first(x).tanh() + self.shift.exp()
        return self.head(self.twice(self.twice(x).tanh()))


@pytest.mark.filterwarnings("ignore:`ExampleScorer` takes the exact but slower path")
def test_rules_fallbacks_and_reasons_are_listed():
    model = problems.seeded(Mixed)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()))
    explanation = scorer.explain(INPUTS, TARGETS)
    found = {p.name: p for p in explanation.parameters}
    assert list(found) == [name for name, _ in model.named_parameters()]
    assert found["first.weight"].rule == "Linear"
    assert found["first.weight"].reason == ""
    assert found["twice.weight"].rule == "Linear"
    assert found["shift"].rule == "fallback"
    assert "exp" in found["shift"].reason
    assert found["idle.weight"].rule == "-"
    shares = [p.share for p in explanation.parameters]
    assert all(share >= 0 for share in shares)
    assert found["first.weight"].share > 0
    assert explanation.num_examples == 6
    lines = str(explanation).splitlines()
    assert lines[0].split()[:4] == ["parameter", "shape", "rule", "cost"]
    assert len(lines) == 1 + len(found) + 2
    assert "3x3" in lines[1 + list(found).index("twice.weight")]
    assert "6 examples in" in lines[-1]


def test_only_scores_of_gradients_can_be_explained():
    scorer = dasgrad.ExampleScorer(problems.network(), problems.cross_entropy, score="loss")
    with pytest.raises(ValueError, match=r"explain` needs score="):
        scorer.explain(INPUTS, TARGETS)
