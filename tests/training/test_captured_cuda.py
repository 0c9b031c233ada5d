"""`CapturedLoop` with CUDA graphs: the steps, the states and the random numbers of an ordinary loop on the GPU."""

import contextlib
import subprocess
import sys

import pytest
import torch
from torch import nn

import dasgrad
import helpers
from training.captured_runs import LR, REFRESHES, assert_same, build, state_of, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none")
quiet = pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True:UserWarning")


class Classifier(nn.Module):
    """Models of several kinds on the same 8 × 8 images."""

    def __init__(self, kind):
        super().__init__()
        if kind == "logistic":
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
        elif kind == "dropout":
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 5))
        elif kind == "cnn":
            self.layers = nn.Sequential(
                *(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(128, 5)),
            )

    def forward(self, images):
        return self.layers(images)


LOSS = nn.CrossEntropyLoss(reduction="none")
OPTIMIZERS = {
    "DASGrad": lambda params: dasgrad.DASGrad(params, lr=LR, capturable=True),
    "DASGrad foreach": lambda params: dasgrad.DASGrad(
        params, lr=LR, foreach=True, bias_correction=True, weight_decay=0.01, capturable=True
    ),
    "DASGrad loop": lambda params: dasgrad.DASGrad(
        params, lr=LR, foreach=False, projection=dasgrad.projections.L2Ball(2.0), capturable=True
    ),
    "DASGrad update": lambda params: dasgrad.DASGrad(params, lr=LR, weighting="update", capturable=True),
    "DASGrad sgd": lambda params: dasgrad.DASGrad(params, lr=LR, moments="sgd", capturable=True),
    "Adam foreach": lambda params: torch.optim.Adam(params, lr=LR, amsgrad=True, foreach=True, capturable=True),
    "AdamW fused": lambda params: torch.optim.AdamW(params, lr=LR, fused=True, capturable=True),
    "SGD": lambda params: torch.optim.SGD(params, lr=LR, momentum=0.5),
    "SGD fused": lambda params: torch.optim.SGD(params, lr=LR, momentum=0.5, fused=True),
}


def build_on_gpu(kind="logistic", optimizer="DASGrad", refresh=7, scheduled=False, device="cuda"):
    """300 images, a tenth of them hard; not divided by the batch size."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(300, 1, 8, 8, generator=generator), torch.arange(300) % 5
    images[torch.arange(300), 0, 0, labels] += 3.0
    labels[::10] = (labels[::10] + 1) % 5
    torch.manual_seed(0)
    model = Classifier(kind).to(device)
    stepping = OPTIMIZERS[optimizer](model.parameters())
    scorer = dasgrad.ExampleScorer(model, LOSS, stepping, score="gradient")
    data = (images.to(device), labels.to(device))
    loader = dasgrad.AdaptiveLoader(data, 16, seed=3, scorer=scorer, refresh=refresh)
    return dasgrad.CapturedLoop(loader, scheduler=dasgrad.InverseSqrtLR(stepping) if scheduled else None)


@contextlib.contextmanager
def same_kernels():
    """Float32 products as they are, convolutions by kernels that add up in one order."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = before


def compare_on_gpu(loop, other, num_steps, parts):
    """Random numbers on the device begin alike; small differences of kernels are allowed for."""
    tolerance = {"rtol": 1e-3, "atol": 1e-5}
    with same_kernels():
        torch.cuda.manual_seed(5)
        losses = []
        for part in parts:
            loop.optimizer.zero_grad()  # which is no business of the graph's
            losses.append(loop.run(part))
        losses = torch.cat(losses)
        random_after = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(5)
        assert_same(losses, train(other, num_steps, LOSS), "losses", **tolerance)
        assert torch.equal(torch.cuda.get_rng_state(), random_after)
        assert_same(state_of(loop), state_of(other), "state", **tolerance)
    assert loop.captured
    assert losses.is_cuda


@quiet
@pytest.mark.parametrize("kind", ["logistic", "dropout", "cnn"])
@pytest.mark.parametrize("parts", [(60,), (2, 1, 17, 40)], ids=["one run", "several"])
def test_a_captured_run_is_an_ordinary_loop_on_the_gpu(kind, parts):
    compare_on_gpu(build_on_gpu(kind), build_on_gpu(kind), 60, parts)


@quiet
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "scheduled"])
def test_optimizers_that_can_be_captured(optimizer, scheduled):
    if optimizer == "SGD" and scheduled:
        with pytest.raises(ValueError, match="got a change of 'lr' in param group 0"):
            build_on_gpu(optimizer=optimizer, scheduled=True).run(10)
        return
    loop, other = (build_on_gpu(optimizer=optimizer, scheduled=scheduled) for _ in range(2))
    compare_on_gpu(loop, other, 40, (40,))


@pytest.mark.parametrize("refresh", REFRESHES)
def test_refreshes_on_the_gpu_come_when_due(refresh):
    loops = [build_on_gpu(refresh=REFRESHES[refresh]()) for _ in range(2)]
    seen = [[], []]
    for loop, steps in zip(loops, seen, strict=True):
        loop.loader.on_refresh(lambda event, steps=steps: steps.append(event.step))
    compare_on_gpu(*loops, 60, (60,))
    assert seen[0] == seen[1]
    assert len(seen[0]) >= 2
    assert loops[0].loader.num_steps == 60
    assert loops[0].loader.step_seconds > 0


@pytest.mark.parametrize("path", [{}, {"foreach": True}, {"foreach": False}], ids=["fused", "foreach", "loop"])
def test_float64_on_the_gpu(path):
    loop, other = (build(device="cuda", scheduled=True, **path) for _ in range(2))
    loop.run(40)
    train(other, 40)
    torch.testing.assert_close(loop.model.weight, other.model.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stratified", ["none", "batch", "pass", "run"])
def test_batches_drawn_together_on_the_gpu_are_those_drawn_one_by_one(stratified):
    samplers = [
        dasgrad.AdaptiveSampler(1000, 48, stratified=stratified, seed=2, device="cuda", floor=floor)
        for floor in (0.2, 0.2)
    ]
    changes = [
        lambda sampler: None,
        lambda sampler: sampler.refresh(torch.linspace(0, 3, 1000, device="cuda").exp()),
        lambda sampler: sampler.update([3, 999], [7.0, 0.0]),
    ]
    for change in changes:
        for sampler in samplers:
            change(sampler)
        indices, weights = samplers[0].draw_batches(50)
        for row in range(50):
            assert_same(samplers[1].draw(), (indices[row], weights[row]))
        assert_same(samplers[0].state_dict(), samplers[1].state_dict())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
def test_a_run_without_a_refresh_does_not_wait_for_the_gpu():
    loop = build_on_gpu(refresh=10_000, scheduled=True)
    loop.run(5)
    assert loop.captured
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = loop.run(50)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert losses.isfinite().all()


def test_a_loop_on_the_gpu_goes_on_after_a_checkpoint_evaluation_and_other_steps(tmp_path):
    loop, other = build_on_gpu("dropout", scheduled=True), build_on_gpu("dropout", scheduled=True)

    def parts(one):
        return {"model": one.model, "optimizer": one.optimizer, "scheduler": one.scheduler, "loader": one.loader}

    def evaluate(one):
        one.model.eval()
        with torch.no_grad():
            LOSS(one.model(one.loader.dataset[0]), one.loader.dataset[1]).mean().item()
        one.model.train()
        one.optimizer.zero_grad()

    with same_kernels():
        torch.cuda.manual_seed(1)
        loop.run(30)
        evaluate(loop)
        dasgrad.save_checkpoint(tmp_path / "run.pt", **parts(loop))
        loop.run(11)
        dasgrad.load_checkpoint(tmp_path / "run.pt", **parts(loop))  # other tensors of state: captured anew
        losses = loop.run(25)
        assert loop.captured
        torch.cuda.manual_seed(1)
        train(other, 30, LOSS)
        evaluate(other)
        dasgrad.save_checkpoint(tmp_path / "other.pt", **parts(other))
        dasgrad.load_checkpoint(tmp_path / "other.pt", **parts(other))
        assert_same(losses, train(other, 25, LOSS), "losses", rtol=1e-3, atol=1e-5)
        assert_same(state_of(loop), state_of(other), "state", rtol=1e-3, atol=1e-5)


def test_what_cannot_be_captured_is_refused_on_the_gpu():
    inputs, targets, model = helpers.regression(20)
    model.cuda()
    optimizer = dasgrad.DASGrad(model.parameters(), capturable=True)
    on_host = dasgrad.AdaptiveLoader((inputs, targets), 4, device="cuda")
    with pytest.raises(ValueError, match="needs its data on the model's device, cuda:0, got cpu"):
        dasgrad.CapturedLoop(on_host, model, helpers.squared_losses, optimizer)
    rows = dasgrad.SparseRows(torch.arange(21), torch.arange(20) % 3, torch.ones(20, dtype=torch.float64), 3)
    sparse = dasgrad.AdaptiveLoader((rows.to("cuda"), targets.cuda()), 4)
    with pytest.raises(ValueError, match="needs dense tensors on a GPU, got SparseRows"):
        dasgrad.CapturedLoop(sparse, model, helpers.squared_losses, optimizer)
    loader = dasgrad.AdaptiveLoader((inputs.cuda(), targets.cuda()), 4)
    plain = dasgrad.DASGrad(model.parameters())
    with pytest.raises(ValueError, match="must be built with capturable=True on a GPU, got capturable=False"):
        dasgrad.CapturedLoop(loader, model, helpers.squared_losses, plain)
    there = dasgrad.DASGrad(nn.Linear(3, 1).parameters(), capturable=True)
    with pytest.raises(ValueError, match="must have its parameters on the model's device, cuda:0, got one on cpu"):
        dasgrad.CapturedLoop(loader, model, helpers.squared_losses, there)


WAITING = """
import sys
import torch
import dasgrad

inputs = torch.randn(20, 3, device="cuda")
model = torch.nn.Linear(3, 1).cuda()
optimizer = dasgrad.DASGrad(model.parameters(), capturable=True)
loader = dasgrad.AdaptiveLoader((inputs, inputs.sum(1)), 4, optimizer=optimizer)

def losses(model, data):
    values = (model(data[0])[:, 0] - data[1]).square()
    return values * (1.0 if values.sum().item() > -1 else 2.0)

loop = dasgrad.CapturedLoop(loader, model, losses=losses)
try:
    loop.run(10)
except RuntimeError as error:
    assert any("must not make the host wait" in note for note in error.__notes__), error
else:
    sys.exit("nothing was raised")
assert loader.num_steps == loader.state_dict()["num_batches"] == 2, loader.num_steps
again = dasgrad.CapturedLoop(loader, model, lambda outputs, targets: (outputs[:, 0] - targets).square())
torch.rand(3, device="cuda")
assert again.run(10).isfinite().all() and again.captured and loader.num_steps == 12
"""


def test_a_loss_that_waits_for_the_gpu_is_refused_before_the_capture():
    """In a process of its own, which a failed capture could leave useless."""
    run = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
