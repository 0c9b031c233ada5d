"""Which score draws go by: the exact one, or one that is clearly sooner."""

import pytest
import torch
from torch import nn

import dasgrad
from dasgrad.training.findings import Found, Option
from dasgrad.training.forecast import Noise
from dasgrad.training.tiers import Tiers
from training.auto_runs import losses_of


@pytest.fixture
def compare():
    """Choose between scores that would take such shares of uniform draws' time."""
    scorer = dasgrad.ExampleScorer(nn.Linear(3, 1), losses_of, score="gradient")
    scores = torch.ones(4)
    found = Found([torch.arange(4)], scores > 0, scores, Noise(100.0, 8), 1.0, 1.0)

    def choose(tiers, exact, take=True, **factors):
        missing = [name for name in ("last_layer", "loss") if name not in factors]

        def score(cheaper):
            if cheaper.score in missing:
                raise ValueError("no such score")
            return scores

        best = tiers.best(
            found,
            Option("refresh", exact, 0.5, 0.5, scorer),
            score,
            lambda name, scores: torch.ones_like(scores),
            lambda cheaper, left: Option("refresh", factors[cheaper.score], left, left, cheaper),
        )
        if take:
            tiers.take(best.scorer)
            assert tiers.scorer(scorer) is best.scorer
        return best.scorer.score

    return choose


@pytest.mark.parametrize(
    ("last_layer", "loss", "chosen"),
    [(0.96, 0.96, "gradient"), (0.94, 0.96, "last_layer"), (0.94, 0.90, "last_layer"), (0.94, 0.89, "loss")],
)
def test_a_less_exact_score_must_be_clearly_better_than_the_one_before(compare, last_layer, loss, chosen):
    assert compare(Tiers(), 1.0, last_layer=last_layer, loss=loss) == chosen


@pytest.mark.parametrize(("exact", "chosen"), [(0.90, "last_layer"), (0.85, "gradient")])
def test_a_score_in_use_stays_until_another_is_clearly_better(compare, exact, chosen):
    tiers = Tiers()
    assert compare(tiers, 1.0, last_layer=0.9, loss=0.9) == "last_layer"
    assert compare(tiers, exact, last_layer=0.9, loss=0.9) == chosen


def test_a_score_that_is_not_taken_is_not_the_present_one(compare):
    tiers = Tiers()
    for take, present in ((False, ""), (True, "last_layer")):
        assert compare(tiers, 1.0, take=take, last_layer=0.5, loss=0.5) == "last_layer"
        assert tiers.present == present


def test_the_exact_score_takes_the_place_of_one_that_is_no_more(compare):
    tiers = Tiers()
    assert compare(tiers, 1.0, last_layer=0.5) == "last_layer"
    assert compare(tiers, 0.51) == "gradient"
    assert tiers.present == ""
    assert compare(tiers, 1.0, last_layer=0.1) == "gradient"  # it is not tried again
