"""Per-example gradients of all sorts of models: rules where there are, torch.func, and the loop, all exact."""

import warnings

import pytest
import torch
from torch import nn

import dasgrad
from scoring import problems

LABELS = torch.arange(5) % 2


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.rnn = kind(3, 4, num_layers=2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


class Tied(nn.Module):
    """One matrix as embedding and as head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)).tanh().mean(1))


class Twice(nn.Module):
    """One module called twice."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(3, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.shared(self.shared(x).tanh()))


class Branching(nn.Module):
    """Control flow that looks at the data: vmap cannot run it."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.left(x) if x.sum().item() > 0 else self.right(x)


class Counting(nn.Module):
    """A forward pass that writes to a buffer the next one reads."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("mean", torch.ones(2))

    def forward(self, x):
        outputs = self.linear(x) + self.mean
        self.mean += outputs.detach().mean(0)
        return outputs


def batch_normed():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    return model.eval()


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    )


def rows(*shape):
    generator = torch.Generator().manual_seed(4)
    return torch.randn(5, *shape, generator=generator, dtype=torch.float64)


TOKENS = torch.randint(7, (5, 6), generator=torch.Generator().manual_seed(5))
MODELS = {
    "linear": (lambda: nn.Linear(3, 2), rows(3)),
    "cnn": (convolutional, rows(1, 6, 6)),
    "transformer": (Attention, rows(6, 4)),
    "batch norm": (batch_normed, rows(3)),
    "tied": (Tied, TOKENS),
    "twice": (Twice, rows(3)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), rows(3)),
}
BY_LOOP = {"branching": (Branching, rows(3)), "counting": (Counting, rows(3))}
RECURRENT = {"lstm": Recurrent, "gru": lambda: Recurrent(nn.GRU)}


@pytest.mark.parametrize("path", problems.PATHS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:.* exact but slower path for 2 .* by _weight_norm")
def test_all_paths_give_autograds_gradients_silently(name, path):
    build, inputs = MODELS[name]
    model = problems.seeded(build)
    model.train(name != "batch norm")
    expected = problems.pair_gradients(model, inputs, LABELS)
    assert (problems.norms(expected) > 0).all()
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, score="gradient")
    problems.force(scorer, path)
    torch.testing.assert_close(scorer(inputs, LABELS), problems.norms(expected), rtol=1e-10, atol=1e-14)
    assert scorer._engine.gradients.looping == (path == "loop")
    optimizer = dasgrad.DASGrad(model.parameters())
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer)
    problems.force(scorer, path)
    before = sum((g.square() / (0.1 * g.abs() + 1e-8)).reshape(5, -1).sum(1) for g in expected.values()).sqrt()
    torch.testing.assert_close(scorer(inputs, LABELS), before, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("path", ["rules", "vmap"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.filterwarnings("ignore:`ExampleScorer` computes per-example gradients one by one")
def test_recurrent_models_are_exact_whichever_path_torch_allows(name, dtype, path):
    """In float32 vmap runs them, by a kernel of its own; in float64 it fails and the loop takes over."""
    model = problems.seeded(RECURRENT[name])
    expected = problems.norms(problems.pair_gradients(model, rows(6, 3), LABELS))
    scorer = dasgrad.ExampleScorer(model.to(dtype), problems.cross_entropy, score="gradient")
    problems.force(scorer, path)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    scores = scorer(rows(6, 3).to(dtype), LABELS)
    torch.testing.assert_close(scores.double(), expected, rtol=tolerance, atol=0)
    assert all(a is b for a, b in zip(model.rnn._flat_weights, model.rnn.parameters(), strict=True))
    model.rnn.flatten_parameters()
    problems.cross_entropy(model(rows(6, 3).to(dtype)), LABELS).mean().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", BY_LOOP)
def test_models_that_vmap_cannot_run_are_scored_by_the_loop_which_is_announced_once(name):
    build, inputs = BY_LOOP[name]
    model = problems.seeded(build)
    expected = torch.cat(
        [problems.norms(problems.pair_gradients(model, inputs[i : i + 1], LABELS[i : i + 1])) for i in range(5)]
    )
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, score="gradient")
    problems.force(scorer, "vmap")
    with pytest.warns(UserWarning, match=r"one by one, exactly but slowly, because torch\.func") as record:
        first = scorer(inputs, LABELS)
    assert len(record) == 1
    again = scorer(inputs.flip(0), LABELS.flip(0)).flip(0)  # a second warning would be an error
    whole = scorer.score_dataset((inputs, LABELS), chunk_size=2)
    for scores in (first, again, whole):
        torch.testing.assert_close(scores, expected, rtol=1e-10, atol=1e-14)


def test_no_loop_is_announced_when_the_model_itself_fails():
    class Broken(nn.Linear):
        def forward(self, x):
            raise RuntimeError("the model's own fault")

    scorer = dasgrad.ExampleScorer(Broken(3, 2), problems.cross_entropy, score="gradient")
    with pytest.raises(RuntimeError, match="the model's own fault"):
        scorer(rows(3), LABELS)
    assert not scorer._engine.gradients.looping


def test_a_loss_that_does_not_depend_on_a_parameter_gives_it_a_zero_gradient():
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2)}).double()

    def losses(m, data):
        return problems.cross_entropy(m["used"](data[0]), data[1])

    for path in problems.PATHS:
        scorer = dasgrad.ExampleScorer(model, losses=losses, optimizer=dasgrad.DASGrad(model.parameters()))
        problems.force(scorer, path)
        used = dasgrad.ExampleScorer(model, losses=losses, optimizer=dasgrad.DASGrad(model["used"].parameters()))
        torch.testing.assert_close(scorer((rows(3), LABELS)), used((rows(3), LABELS)), rtol=1e-12, atol=0)
        constant = dasgrad.ExampleScorer(model, losses=lambda m, data: data[0].sum(1), score="gradient")
        problems.force(constant, path)
        assert constant((rows(3), LABELS)).tolist() == [0.0] * 5


@pytest.mark.parametrize("path", problems.PATHS)
def test_dropout_is_off_while_scoring(path):
    def build():
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    model = problems.seeded(build).train()
    expected = problems.norms(problems.pair_gradients(model, rows(3), LABELS))
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, score="gradient")
    problems.force(scorer, path)
    torch.testing.assert_close(scorer(rows(3), LABELS), expected, rtol=1e-10, atol=0)
    assert model[1].training


WRAPPERS = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "data parallel": nn.DataParallel,
    "both": lambda model: torch.compile(nn.DataParallel(model), backend="eager"),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("score", ["dasgrad", "gradient", "last_layer", "loss"])
def test_wrappers_are_looked_through(wrapper, score):
    inputs, targets = problems.classification()
    model = problems.network()
    wrapped = WRAPPERS[wrapper](model)  # data parallel moves the model where a GPU is
    inputs, targets = (part.to(next(model.parameters()).device) for part in (inputs, targets))
    optimizer = dasgrad.DASGrad(wrapped.parameters())
    scorer = dasgrad.ExampleScorer(wrapped, problems.cross_entropy, optimizer, score=score)
    plain = dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, score=score)
    assert scorer.model is model
    torch.testing.assert_close(scorer(inputs, targets), plain(inputs, targets), rtol=0, atol=0)


def test_batch_norm_in_training_mode_warns_once_naming_the_modules():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    model.double()[2][1].eval()
    model.append(nn.Linear(4, 2).double())
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()))
    with pytest.warns(UserWarning, match=r"BatchNorm in training mode: 1\. .* GroupNorm or LayerNorm") as record:
        first = scorer(rows(3), LABELS)
    assert len(record) == 1
    scorer(rows(3), LABELS)  # a second warning would be an error
    scorer.score_dataset((rows(3), LABELS))
    model.eval()
    torch.testing.assert_close(first, scorer(rows(3), LABELS), rtol=0, atol=0)


def test_a_model_that_is_one_batch_norm_is_named_too():
    model = nn.BatchNorm1d(3).double()
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, score="loss")
    with pytest.warns(UserWarning, match=r"\(the model itself\)"):
        scorer(rows(3), LABELS)


def test_batch_norm_in_eval_mode_does_not_warn():
    model = problems.seeded(batch_normed)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, dasgrad.DASGrad(model.parameters()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scorer(rows(3), LABELS)
