"""Tensors that are not just numbers in memory are torch's business: compiled code is given none of them."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor

import dasgrad
from dasgrad.scoring import native
from dasgrad.scoring.plain import are_plain
from scoring import problems

INPUTS, TARGETS = problems.classification(n=40)  # enough for memory to be measured
pytestmark = [
    pytest.mark.usefixtures("small_layers"),
    # Torch's own, where it is first asked for a tangent.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


class Tagged(torch.Tensor):
    """Numbers in memory, but functions of them are its own."""


class Held:
    """Rows of a user's own that linear layers take, as they take `SparseRows`."""

    def __init__(self, rows):
        self.rows = rows

    shape = property(lambda self: self.rows.shape)
    device = property(lambda self: self.rows.device)
    dtype = property(lambda self: self.rows.dtype)

    def __getitem__(self, rows):
        return Held(self.rows[rows])

    def dim(self):
        return self.rows.dim()

    def to(self, *args, **kwargs):
        return Held(self.rows.to(*args, **kwargs))

    def is_floating_point(self):
        return True

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*(each.rows if isinstance(each, Held) else each for each in args), **(kwargs or {}))


def tangent(function, x):
    """Of a function at x, along ones, by forward-mode differentiation."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def over_examples(function, x):
    return torch.vmap(function)(x[:, None])[:, 0]


def over_parameters(layer, x):
    """An ensemble of two."""
    stacked = torch.stack([layer.weight, 2 * layer.weight]), torch.stack([layer.bias, layer.bias])
    return torch.vmap(lambda weight, bias: functional.linear(x, weight, bias))(*stacked).mean(0)


FORWARDS = {
    "forward-mode differentiation": lambda model, x: tangent(lambda each: model[2](model[1](model[0](each)) + 1), x),
    "jvp": lambda model, x: torch.func.jvp(model, (x,), (torch.ones_like(x),))[1],
    "vmap over examples": over_examples,
    "vmap over parameters": lambda model, x: model[2](model[1](over_parameters(model[0], x))),
    "sparse weight": lambda model, x: model(functional.linear(x, torch.eye(3, dtype=x.dtype).to_sparse_csr())),
    "input of a subclass": lambda model, x: model(x.as_subclass(Tagged)).as_subclass(torch.Tensor),
    "rows of a user's own": lambda model, x: model(Held(x)),
}


class Network(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers, self.kind = problems.network(), kind

    def forward(self, x):
        return FORWARDS[self.kind](self.layers, x)


def wrapped(layer):
    """The layer with weight and bias in other tensors."""
    for name, param in list(layer.named_parameters()):
        both = TwoTensor(param.detach(), param.detach())
        setattr(layer, name, nn.Parameter(both, requires_grad=param.requires_grad))


@pytest.fixture
def checked(monkeypatch):
    """Whoever gives the core what is no memory is told so, instead of a crash."""
    for name in ("_rows", "_pointers"):
        look_up = getattr(native, name)

        def check(given, look_up=look_up):
            assert are_plain(*([given] if isinstance(given, torch.Tensor) else given))
            return look_up(given)

        monkeypatch.setattr(native, name, check)


CASES = [(kind, score) for kind in FORWARDS for score in ("loss", "last_layer", "gradient")]
NEVER_FOLLOWED = {("forward-mode differentiation", "gradient"), ("jvp", "gradient")}
"""Torch lets no function of one's own carry a tangent, as those that lead to a tape's anchor."""


@pytest.mark.parametrize(("kind", "score"), [case for case in CASES if case not in NEVER_FOLLOWED])
@pytest.mark.filterwarnings("ignore:`ExampleScorer`", "ignore:Sparse CSR tensor support")
def test_models_have_the_scores_that_torch_alone_gives_them(kind, score, checked, monkeypatch):
    model = problems.seeded(lambda: Network(kind))

    def scores():
        return dasgrad.ExampleScorer(model, problems.cross_entropy, score=score)(INPUTS, TARGETS)

    found = scores()
    monkeypatch.setattr(native, "library", None)
    torch.testing.assert_close(found, scores(), rtol=1e-12, atol=1e-14)
    if score == "loss":
        expected = problems.cross_entropy(model(INPUTS), TARGETS).detach()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("score", ["loss", "last_layer"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_forward_pass_through_wrapped_weights_is_torchs(frozen, score, checked):
    model = problems.network()
    expected = dasgrad.ExampleScorer(model, problems.cross_entropy, score=score)(INPUTS, TARGETS)
    model[0].requires_grad_(not frozen)
    wrapped(model[0])
    scores = dasgrad.ExampleScorer(model, problems.cross_entropy, score=score)(INPUTS, TARGETS)
    torch.testing.assert_close(scores.a, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
@pytest.mark.parametrize("score", ["gradient", "dasgrad"])
@pytest.mark.parametrize(("frozen", "what"), [(False, "parameters, got TwoTensor for 0."), (True, "gradients, got")])
@pytest.mark.filterwarnings("ignore:`ExampleScorer` takes the exact but slower path")
@pytest.mark.filterwarnings("ignore:`ExampleScorer` computes per-example gradients one by one")
def test_gradients_in_other_tensors_are_refused(frozen, what, score, preconditioner, monkeypatch):
    monkeypatch.setattr(native, "library", None)  # which would crash, if they were not
    model = problems.network()
    model[0].requires_grad_(not frozen)
    wrapped(model[0])
    optimizer = torch.optim.Adam([param for param in model.parameters() if param.requires_grad])
    options = {"score": score, "preconditioner": preconditioner, "momentum": True}
    with pytest.raises(TypeError, match=rf"`ExampleScorer\(model=\.\.\.\)` must have plain tensors as {what}"):
        dasgrad.ExampleScorer(model, problems.cross_entropy, optimizer, **options)(INPUTS, TARGETS)


@pytest.mark.parametrize("through", [over_examples, tangent])
@pytest.mark.parametrize("layer", [nn.MaxPool2d(2), nn.LocalResponseNorm(3)])
def test_functions_inside_transforms_have_no_stand_in(layer, through):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.LazyLinear(2, dtype=torch.float64)

        def forward(self, x):
            return self.last(through(layer, x).flatten(1))

    model, inputs = Net(), torch.arange(40 * 16 * 16, dtype=torch.float64).sin().view(40, 16, 4, 4)
    model(inputs)
    scorer = dasgrad.ExampleScorer(model, problems.cross_entropy, score="gradient")
    scores = scorer(inputs, TARGETS)
    problems.force(scorer, "loop")
    torch.testing.assert_close(scorer(inputs, TARGETS), scores, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, 2).to_sparse(), torch.ones(2, 2).as_subclass(Tagged), TwoTensor(torch.ones(2), torch.ones(2))],
)
def test_what_is_plain(tensor):
    assert are_plain(torch.ones(2), nn.Parameter(torch.ones(2)), None)
    assert not are_plain(torch.ones(2), tensor)
    assert not native.supports(tensor)
    assert not native.reads(tensor)
