"""A chunk on a CPU is scored in blocks that hold a bounded number of bytes."""

import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dasgrad
from dasgrad.scoring import footprint, own
from dasgrad.scoring.measures import quadratic
from dasgrad.scoring.probe import NUM_PROBED
from scoring import problems

HIDDEN = 100
HELD = 8 * HIDDEN
"""Bytes of the hidden layer of one example."""


class Network(nn.Module):
    """Writes down how many examples each call had, and may run out of memory on more than ``limit``."""

    def __init__(self, features=3, limit=None, checkpointed=False):
        super().__init__()
        self.first, self.last = nn.Linear(features, HIDDEN), nn.Linear(HIDDEN, 2)
        self.limit, self.checkpointed, self.sizes = limit, checkpointed, []

    def hidden(self, x):
        return self.first(x).tanh()

    def forward(self, x):
        self.sizes.append(x.shape[0])
        if self.limit is not None and x.shape[0] > self.limit:
            raise MemoryError
        return self.last(checkpoint(self.hidden, x, use_reentrant=False) if self.checkpointed else self.hidden(x))


def scorer_of(model, **options):
    return dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()), **options)


def large_sizes(model):
    """Of calls since the last time, without those on a few examples that come first."""
    found = [size for size in model.sizes if size > NUM_PROBED]
    model.sizes.clear()
    return found


@pytest.fixture
def eight_at_once(monkeypatch):
    """Room for eight examples of `Network`, and what else it holds of them."""
    monkeypatch.setattr(footprint, "BLOCK_BYTES", 8 * HELD + HELD // 2 + 8)
    monkeypatch.setattr(footprint, "FEWEST", 4)


def whole(data, **options):
    """What blocks must give: scores from one pass over everything."""
    model = problems.seeded(Network)
    scores = scorer_of(model, **options)(*data)
    assert large_sizes(model) in ([], [len(scores)])
    return scores


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
@pytest.mark.parametrize(
    ("num_examples", "sizes"),
    [(8, [8]), (9, [5, 4]), (16, [8, 8]), (17, [6, 6, 5]), (23, [8, 8, 7])],
)
def test_a_chunk_is_cut_into_even_blocks_with_the_same_scores(num_examples, sizes, preconditioner, request):
    data = problems.classification(n=num_examples)
    expected = whole(data, preconditioner=preconditioner)
    request.getfixturevalue("eight_at_once")
    model = problems.seeded(Network)
    scorer = scorer_of(model, preconditioner=preconditioner)
    for _ in range(2):  # what is found out in the first call does not change how data are cut
        torch.testing.assert_close(scorer(*data), expected, rtol=1e-12, atol=0)
        assert large_sizes(model) == sizes


@pytest.mark.parametrize(
    ("preconditioner", "module", "what"), [("own", own, "read_terms"), ("frozen", quadratic, "inverse_of")]
)
@pytest.mark.parametrize(("num_examples", "blocks"), [(8, 1), (17, 3)])
def test_what_measures_keep_is_computed_before_the_first_of_several_blocks(
    preconditioner, module, what, num_examples, blocks, eight_at_once, monkeypatch
):
    """Else it would lie among what the first block holds, and keep the others from using that memory as a whole."""
    model = problems.seeded(Network)
    data = problems.classification(n=num_examples)
    scorer = scorer_of(model, preconditioner=preconditioner)
    scorer(*data)  # looks at a few examples
    model.sizes.clear()
    compute, seen = getattr(module, what), []
    monkeypatch.setattr(module, what, lambda *args: seen.append(len(model.sizes)) or compute(*args))
    scorer(*data)
    assert len(model.sizes) == blocks
    assert len(seen) == 4  # once a parameter
    assert max(seen) == (0 if blocks > 1 else 1)


def test_what_a_layer_keeps_for_its_rule_counts_where_autograd_saves_nothing(eight_at_once, monkeypatch):
    """Parameters need no gradients while scores are computed, so that autograd has no use for a layer's input."""
    monkeypatch.setattr(Network, "hidden", lambda self, x: self.first(x))
    model = problems.seeded(Network)
    scorer_of(model)(*problems.classification(n=16))
    assert large_sizes(model) == [8, 8]


def test_what_examples_hold_is_measured_once_for_each_shape(eight_at_once, monkeypatch):
    measured, measure = [], footprint.bytes_an_example
    monkeypatch.setattr(footprint, "bytes_an_example", lambda *args: measured.append(1) or measure(*args))
    scorer = scorer_of(problems.seeded(Network))
    for num_examples in (16, 23, 40):
        scorer(*problems.classification(n=num_examples))
    assert len(measured) == 1


@pytest.mark.parametrize("num_examples", [0, 1])
def test_no_example_and_one_example_have_their_scores(num_examples, eight_at_once):
    inputs, targets = problems.classification(n=9)
    model = problems.seeded(Network)
    scores = scorer_of(model)(inputs[:num_examples], targets[:num_examples])
    torch.testing.assert_close(scores, scorer_of(model)(inputs, targets)[:num_examples], rtol=1e-12, atol=0)


def test_a_data_set_is_read_in_chunks_and_scored_in_blocks(eight_at_once):
    inputs, targets = problems.classification(n=27)
    model = problems.seeded(Network)
    scorer, done = scorer_of(model), []
    scores = scorer.score_dataset((inputs, targets), chunk_size=12, progress=lambda k, _: done.append(k))
    assert large_sizes(model) == [6, 6, 6, 6]  # and the 3 that are left
    assert done[-3:] == [12, 24, 27]
    torch.testing.assert_close(scores, scorer(inputs, targets), rtol=1e-12, atol=0)


def test_few_examples_are_taken_at_once_whatever_they_hold(monkeypatch):
    monkeypatch.setattr(footprint, "BLOCK_BYTES", 1)
    model = problems.seeded(Network)
    scorer_of(model)(*problems.classification(n=footprint.FEWEST))
    assert large_sizes(model) == [footprint.FEWEST]
    scorer_of(model)(*problems.classification(n=footprint.FEWEST + 1))
    assert large_sizes(model) == [17, 16]


def test_examples_that_hold_little_stay_together():
    model = problems.seeded(Network)
    scorer_of(model)(*problems.classification(n=5_000))
    assert large_sizes(model) == [5_000]


def test_no_more_are_taken_at_once_than_are_worth_it(monkeypatch):
    data = problems.classification(n=100)
    expected = whole(data)
    monkeypatch.setattr(footprint, "MOST", 40)
    model = problems.seeded(Network)
    torch.testing.assert_close(scorer_of(model)(*data), expected, rtol=1e-12, atol=0)
    assert large_sizes(model) == [34, 34, 32]


@pytest.mark.parametrize("score", ["loss", "last_layer"])
def test_scores_of_a_forward_pass_are_cut_by_its_largest_layer(score, eight_at_once, monkeypatch):
    data = problems.classification(n=17)
    model = problems.seeded(Network)
    scorer = scorer_of(model, score=score)
    scores = scorer(*data)
    assert large_sizes(model) == [6, 6, 5]
    scorer(*data)
    assert model.sizes == [6, 6, 5]  # measured once
    monkeypatch.undo()
    torch.testing.assert_close(scorer_of(model, score=score)(*data), scores, rtol=1e-12, atol=0)


def test_layers_that_are_not_scored_count_by_what_they_put_out(eight_at_once, monkeypatch):
    """Nothing of them is kept for a backward pass, but a chunk still goes through them."""
    model = problems.seeded(lambda: Network(checkpointed=False))
    model.first.requires_grad_(False)
    monkeypatch.setattr(Network, "hidden", lambda self, x: self.first(x).mean(1, keepdim=True).expand(-1, HIDDEN))
    scorer_of(model)(*problems.classification(n=17))
    assert large_sizes(model) == [6, 6, 5]


HIDDEN_LAYERS = {
    "a tuple": lambda self, x: torch.sort(x.mean(1, keepdim=True).expand(-1, HIDDEN)).values,
    "a view": lambda self, x: torch.einsum("bi,hi->bh", x, self.first.weight),
    "in a transform": lambda self, x: torch.vmap(self.first)(x[:, None])[:, 0],
}


@pytest.mark.parametrize("score", ["loss", "last_layer"])
@pytest.mark.parametrize("layer", HIDDEN_LAYERS)
def test_memory_counts_in_whatever_way_a_function_hands_it_out(layer, score, eight_at_once, monkeypatch):
    monkeypatch.setattr(Network, "hidden", HIDDEN_LAYERS[layer])
    model, data = problems.seeded(Network), problems.classification(n=17)
    model(data[0])
    model.sizes.clear()
    scores = scorer_of(model, score=score)(*data)
    assert large_sizes(model) == [6, 6, 5]
    monkeypatch.undo()
    monkeypatch.setattr(Network, "hidden", HIDDEN_LAYERS[layer])
    torch.testing.assert_close(scorer_of(model, score=score)(*data), scores, rtol=1e-12, atol=0)


@pytest.mark.parametrize("score", ["loss", "last_layer", "gradient", "dasgrad"])
def test_models_that_use_sparse_tensors_are_measured(score):
    class Graph(nn.Module):
        """Averages the features of neighbours."""

        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 2)
            self.register_buffer("neighbours", torch.eye(3) + torch.ones(2).diag(1))

        def forward(self, x):
            return self.last(torch.sparse.mm(self.neighbours.to_sparse(), x.t()).t())

    model, data = problems.seeded(Graph), problems.classification(n=40)
    scorer = scorer_of(model, score=score)
    expected = torch.cat([scorer(*(each[k : k + 20] for each in data)) for k in (0, 20)])
    torch.testing.assert_close(scorer(*data), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("score", ["loss", "last_layer"])
def test_data_that_cannot_be_cut_are_scored_as_a_whole(score):
    inputs, targets = problems.classification(n=40)
    model = problems.network()
    expected = scorer_of(model, score=score)(inputs, targets)

    def losses(model, data):
        return problems.cross_entropy(model(data[0].to_dense()), data[1])

    scorer = dasgrad.ExampleScorer(model, losses=losses, score=score)
    torch.testing.assert_close(scorer(inputs.to_sparse(), targets), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("score", ["loss", "last_layer"])
def test_scores_of_a_forward_pass_that_does_not_fit_are_halved_like_others(score):
    data = problems.classification(n=32)
    model = problems.seeded(lambda: Network(limit=10))
    with pytest.warns(UserWarning, match="scoring 32 examples at once does not fit .* going on with 16") as record:
        scores = scorer_of(model, score=score)(*data)
    assert len(record) == 1
    model.limit = None
    torch.testing.assert_close(scores, scorer_of(model, score=score)(*data), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["dict", "sparse"])
def test_data_of_every_kind_are_cut(kind, eight_at_once):
    inputs, targets = problems.classification(n=20)
    model = problems.seeded(Network)
    data = {"x": inputs, "more": {"y": targets, "name": "some"}}
    if kind == "sparse":
        data["x"] = dasgrad.SparseRows(torch.arange(21) * 3, torch.arange(3).repeat(20), inputs.flatten(), 3)
    scorer = dasgrad.ExampleScorer(
        model,
        losses=lambda model, data: problems.cross_entropy(model(data["x"]), data["more"]["y"]),
        optimizer=dasgrad.DASGrad(model.parameters()),
    )
    scores = scorer(data)
    assert large_sizes(model) == [7, 7, 6]
    torch.testing.assert_close(scores, scorer_of(model)(inputs, targets), rtol=1e-12, atol=0)


def test_a_block_that_does_not_fit_is_halved_like_a_chunk(eight_at_once):
    inputs, targets = problems.classification(n=32)
    model = problems.seeded(lambda: Network(limit=5))
    with pytest.warns(UserWarning, match="scoring 8 examples at once does not fit .* going on with 4") as record:
        scores = scorer_of(model)(inputs, targets)
    assert len(record) == 1
    assert large_sizes(model) == [8, *[4] * 8]
    model.limit = None
    torch.testing.assert_close(scores, scorer_of(model)(inputs, targets), rtol=1e-12, atol=0)


def test_an_example_with_a_nan_spoils_its_own_score_alone_in_whichever_block(eight_at_once):
    inputs, targets = problems.classification(n=20)
    expected = scorer_of(problems.seeded(Network))(inputs, targets)
    inputs[13, 1] = float("nan")
    scores = scorer_of(problems.seeded(Network))(inputs, targets)
    assert scores.isnan().nonzero().flatten().tolist() == [13]
    keep = torch.arange(20) != 13
    torch.testing.assert_close(scores[keep], expected[keep], rtol=1e-12, atol=0)


def test_longer_examples_make_smaller_blocks(eight_at_once):
    model = problems.seeded(Network)
    scorer = dasgrad.ExampleScorer(
        model,
        losses=lambda model, data: model(data).square().mean((1, 2)),
        optimizer=dasgrad.DASGrad(model.parameters()),
    )
    for length, sizes in ((1, [8, 8]), (2, [4] * 4), (1, [8, 8])):
        scores = scorer(torch.ones(16, length, 3, dtype=torch.float64))
        assert large_sizes(model) == sizes
        torch.testing.assert_close(scores, scores[:1].expand(16), rtol=1e-12, atol=0)


class Differentiating(nn.Module):
    """Computes gradients itself, with functions that allow no hooks at what autograd saves."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(torch.func.vmap(torch.func.grad(lambda row: (row**3).sum()))(x))


def test_a_model_that_cannot_be_measured_is_scored_as_a_whole(eight_at_once):
    inputs, targets = problems.classification(n=20)
    model = problems.seeded(Differentiating)
    scores = scorer_of(model)(inputs, targets)
    torch.testing.assert_close(scores, scorer_of(model.linear)(3 * inputs**2, targets), rtol=1e-12, atol=0)


@pytest.fixture
def measured(monkeypatch):
    """Bytes an example, as they are measured."""
    found, measure = [], footprint.bytes_an_example

    def spy(*args):
        found.append(measure(*args))
        return found[-1]

    monkeypatch.setattr(footprint, "bytes_an_example", spy)
    return found


@pytest.mark.parametrize("features", [3, 1000])
def test_what_is_held_is_the_activations_without_the_parameters_and_the_data(features, measured):
    model = problems.seeded(lambda: Network(features))
    inputs, targets = torch.ones(100, features, dtype=torch.float64), torch.zeros(100, dtype=torch.int64)
    scorer_of(model)(inputs, targets)
    (num_bytes,) = measured
    assert HELD <= num_bytes <= 1.1 * HELD


def test_what_checkpointing_computes_again_is_not_held(measured):
    model = problems.seeded(lambda: Network(checkpointed=True))
    scorer_of(model)(*problems.classification(n=100))
    plain = problems.seeded(lambda: Network(checkpointed=False))
    scorer_of(plain)(*problems.classification(n=100))
    assert measured[0] <= measured[1]


def test_passes_leave_nothing_to_the_garbage_collector():
    """Small tensors in cycles would keep the memory between them in pieces from block to block."""
    inputs, targets = problems.classification(n=20)
    scorer = scorer_of(problems.network())
    scorer(inputs, targets)
    gc.collect()
    gc.disable()
    try:
        scorer(inputs, targets)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [value for value in gc.garbage if isinstance(value, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []
