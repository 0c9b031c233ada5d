"""Chunks that do not fit into memory, and bounded temporaries."""

import pytest
import torch
from torch import nn

import dasgrad
from scoring import problems


class Hungry(nn.Module):
    """Runs out of memory on more than ``limit`` examples at once."""

    def __init__(self, limit, error):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.limit, self.error, self.sizes = limit, error, []

    def forward(self, x):
        self.sizes.append(len(x))
        if len(x) > self.limit:
            raise self.error
        return self.linear(x)


ERRORS = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"),
    "python": MemoryError(),
}


@pytest.mark.parametrize("error", ERRORS)
def test_a_chunk_that_does_not_fit_is_halved_until_it_does_which_is_said_once(error):
    inputs, targets = problems.classification(n=23)
    model = problems.seeded(lambda: Hungry(23, ERRORS[error]))
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()))
    expected = scorer(inputs, targets)
    model.limit = 3
    model.sizes.clear()
    with pytest.warns(UserWarning, match="scoring 10 examples at once does not fit .* going on with 5") as record:
        scores = scorer.score_dataset((inputs, targets), chunk_size=10)
    assert len(record) == 1
    torch.testing.assert_close(scores, expected, rtol=1e-12, atol=0)
    assert model.sizes.count(10) == 1  # what did not fit is not tried again in the same pass
    assert model.sizes.count(5) == 1


@pytest.mark.filterwarnings("ignore:scoring 6 examples at once does not fit")
def test_an_example_that_does_not_fit_is_an_error_that_says_so():
    inputs, targets = problems.classification()
    model = problems.seeded(lambda: Hungry(0, ERRORS["cpu"]))
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()))
    with pytest.raises(MemoryError, match="one example does not fit"):
        scorer.score_dataset((inputs, targets))


def test_other_errors_are_not_taken_for_lack_of_memory():
    inputs, targets = problems.classification()
    model = problems.seeded(lambda: Hungry(0, RuntimeError("mat1 and mat2 shapes cannot be multiplied")))
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        scorer.score_dataset((inputs, targets))


@pytest.mark.parametrize("score", ["dasgrad", "gradient"])
@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
def test_an_example_with_a_nan_spoils_its_own_score_alone(score, preconditioner):
    inputs, targets = problems.classification(dtype=torch.float32)
    model = problems.network(dtype=torch.float32)
    options = {"score": score, "preconditioner": preconditioner}
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()), **options)
    expected = scorer(inputs, targets)
    for value in (float("nan"), float("inf")):
        spoilt = inputs.clone()
        spoilt[2, 1] = value
        scores = dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()), **options)(
            spoilt, targets
        )
        assert not torch.isfinite(scores[2])
        keep = torch.arange(6) != 2
        torch.testing.assert_close(scores[keep], expected[keep], rtol=1e-6, atol=0)
