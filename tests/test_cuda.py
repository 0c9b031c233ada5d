"""The same library on a GPU: same numbers, everything stays on the device."""

import contextlib

import pytest
import torch
from scipy import stats

import dasgrad
import helpers
from dasgrad.sampling import sampler as sampler_module
from one_by_one import OneByOne

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none")


def build(device, *, on_device=True, **options):
    inputs, targets, model = helpers.regression(60)
    model.to(device)
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.05, **options)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    home = device if on_device else "cpu"
    sampler = dasgrad.AdaptiveSampler(60, 8, seed=1, device=home)
    data = (inputs.to(home), targets.to(home))
    return model, optimizer, dasgrad.AdaptiveLoader(data, sampler=sampler, scorer=scorer, refresh=3, device=device)


def train(model, optimizer, loader):
    for batch in loader:
        optimizer.zero_grad()
        batch.backward(helpers.squared_losses(model(batch.inputs), batch.targets), optimizer)
        optimizer.step()


@pytest.mark.parametrize("weighting", helpers.WEIGHTINGS)
@pytest.mark.parametrize("moments", helpers.MOMENTS)
def test_training_on_the_gpu_equals_training_on_the_cpu(weighting, moments):
    """Data and draws on the CPU, model on either: the draws are the same, so the parameters are."""
    paths = []
    for device in ("cpu", "cuda"):
        model, optimizer, loader = build(device, on_device=False, weighting=weighting, moments=moments)
        for _ in range(3):
            train(model, optimizer, loader)
        paths.append(model.weight.detach().cpu())
    torch.testing.assert_close(paths[0], paths[1], rtol=1e-9, atol=1e-10)


def test_tensors_on_the_gpu_stay_there():
    model, optimizer, loader = build("cuda")
    assert loader.sampler.device.type == "cuda"
    for batch in loader:
        assert {batch.inputs.device.type, batch.indices.device.type, batch.weights.device.type} == {"cuda"}
        inputs = loader.dataset[0]
        assert torch.equal(batch.inputs, inputs[batch.indices])
    train(model, optimizer, loader)
    weights = loader.sampler.weights
    assert weights.device.type == "cuda"
    assert weights.max() <= 10.0


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
def test_drawing_does_not_wait_for_the_gpu():
    for target in (None, dasgrad.targets.uniform(60)):
        sampler = dasgrad.AdaptiveSampler(60, 8, target=target, device="cuda")
        sampler.refresh(torch.rand(60, device="cuda"))
        torch.cuda.set_sync_debug_mode("error")
        try:
            indices, weights = sampler.draw()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.testing.assert_close(weights, sampler.weights[indices], rtol=1e-12, atol=0)


@pytest.mark.parametrize("preconditioner", ["own", "frozen"])
def test_scores_on_the_gpu_equal_those_on_the_cpu(preconditioner):
    scores = []
    for device in ("cpu", "cuda"):
        model, optimizer, loader = build(device, on_device=False)
        train(model, optimizer, loader)
        loader.scorer.preconditioner = preconditioner
        state = torch.cuda.get_rng_state()
        scores.append(loader.scorer.score_dataset(loader.dataset).cpu())
        assert torch.equal(state, torch.cuda.get_rng_state())
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-9, atol=0)


@pytest.mark.parametrize("moments", ["adam", "amsgrad"])
@pytest.mark.parametrize("bias_correction", [False, True])
def test_fused_and_loop_agree_on_the_gpu(moments, bias_correction):
    results = []
    for path in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        model, optimizer, loader = build(
            "cuda",
            on_device=False,
            moments=moments,
            bias_correction=bias_correction,
            projection=dasgrad.projections.L2Ball(1.0),
            **path,
        )
        train(model, optimizer, loader)
        results.append(model.weight.detach())
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=1e-9, atol=1e-10)


def test_pinned_batches_and_sparse_rows_move():
    dense = torch.eye(6)
    rows = dasgrad.SparseRows(torch.arange(7), torch.arange(6), torch.ones(6), 6)
    loader = dasgrad.AdaptiveLoader(
        helpers.Rows(rows, torch.zeros(6)), 3, device="cuda", num_workers=1, pin_memory=True
    )
    layer = torch.nn.Linear(6, 2).cuda()
    for batch in loader:
        torch.testing.assert_close(layer(batch.inputs), layer(dense[batch.indices.cpu()].cuda()))


def test_amp_with_a_scaler_counts_only_steps_taken():
    model, optimizer, loader = build("cuda")
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20)
    taken = 0
    for k, batch in enumerate(loader):
        optimizer.zero_grad()
        loss = batch.weighted_mean(helpers.squared_losses(model(batch.inputs), batch.targets))
        scaler.scale(loss * (float("inf") if k == 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        taken += k != 2
    assert loader.num_steps == taken == len(loader) - 1


@pytest.fixture
def no_waiting():
    """Give a context in which anything that waits for the device raises."""

    @contextlib.contextmanager
    def forbidden():
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return forbidden


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
@pytest.mark.parametrize("stratified", ["none", "batch", "pass", "run"])
@pytest.mark.parametrize("floor", [0.0, 0.2])
@pytest.mark.parametrize("targeted", [False, True])
def test_no_draw_waits_whatever_came_before_it(no_waiting, stratified, floor, targeted):
    target = dasgrad.targets.uniform(1000) if targeted else None
    options = {"target": target, "floor": floor, "epsilon": 0.1, "stratified": stratified}
    sampler = dasgrad.AdaptiveSampler(1000, 8, device="cuda", **options)
    changes = [
        lambda: None,
        lambda: sampler.refresh(torch.rand(1000, device="cuda")),
        lambda: sampler.update(torch.tensor([5, 7], device="cuda"), torch.tensor([3.0, 0.0], device="cuda")),
        lambda: sampler.refresh(torch.rand(1000, device="cuda")),
    ]
    for change in changes:
        change()
        with no_waiting():
            draws = [sampler.draw(num) for num in (None, 3, *[None] * 40, 0)]
        for indices, weights in draws:
            torch.testing.assert_close(weights, sampler.weights[indices], rtol=1e-12, atol=0)


@pytest.mark.parametrize("stratified", ["none", "batch", "pass", "run"])
@pytest.mark.parametrize("batch_size", [1, 7, 48, 5000])
def test_draws_made_ahead_on_the_gpu_are_those_made_one_by_one(monkeypatch, stratified, batch_size):
    def make():
        return dasgrad.AdaptiveSampler(1000, batch_size, stratified=stratified, seed=2, device="cuda")

    sampler = make()
    monkeypatch.setattr(sampler_module, "BatchDraws", OneByOne)
    other = make()
    changes = [
        lambda sampler: None,
        lambda sampler: sampler.refresh(torch.linspace(0, 3, 1000, device="cuda").exp()),
        lambda sampler: sampler.update([3, 999], [7.0, 0.0]),
        lambda sampler: sampler.set_epoch(1),
        lambda sampler: sampler.refresh(torch.linspace(3, 0, 1000, device="cuda")),
    ]
    for change in changes:
        change(sampler)
        change(other)
        for num in (None, *[None] * 60, 5, None, None):
            for ours, theirs in zip(sampler.draw(num), other.draw(num), strict=True):
                assert torch.equal(ours, theirs)
        for ours, theirs in zip(sampler.draw_batches(20), other.draw_batches(20), strict=True):
            assert torch.equal(ours, theirs)
        for _ in range(4):
            for ours, theirs in zip(sampler.draw(), other.draw(), strict=True):
                assert torch.equal(ours, theirs)
        states = sampler.state_dict(), other.state_dict()
        assert torch.equal(states[0]["generator"], states[1]["generator"])
        if stratified == "pass":
            assert torch.equal(*(state["cover"]["generator"] for state in states))
            assert states[0]["cover"]["position"] == states[1]["cover"]["position"]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
def test_no_sample_of_a_tree_waits_whatever_came_before_it(no_waiting):
    tree, generator = dasgrad.SegmentTree(torch.rand(10_001), device="cuda"), torch.Generator("cuda").manual_seed(0)
    for change in (lambda: None, lambda: tree.update([3, 4], [0.0, 9.0]), lambda: tree.rebuild(torch.rand(10_001))):
        change()
        with no_waiting():
            indices, masses = tree.sample(1000, generator=generator)
        assert torch.equal(masses, tree.masses[indices])
        assert (masses > 0).all()


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 100_003])
def test_ends_of_segments_have_the_bits_of_the_cpu(size):
    masses = torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64).mul_(5).exp_()
    masses[: size // 3] = 0
    tree = dasgrad.SegmentTree(masses)
    torch.use_deterministic_algorithms(True)  # under which torch.cumsum is refused
    try:
        assert torch.equal(tree.to("cuda").ends.cpu(), tree.ends)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("floor", [0.0, 0.2, 0.99])
@pytest.mark.parametrize("targeted", [False, True])
def test_the_same_uniforms_draw_the_same_on_the_gpu(targeted, floor):
    """By search and from the tree; this seed hits no segment so close to its end that rounding decides."""
    generator = torch.Generator().manual_seed(8)
    target = None
    if targeted:
        target = torch.rand(10_000, generator=generator, dtype=torch.float64)
        target[::7] = 0
        target /= target.sum()
    scores = torch.rand(10_000, generator=generator, dtype=torch.float64).pow_(8)
    uniforms = torch.rand(20_000, generator=generator, dtype=torch.float64)
    options = {"target": target, "floor": floor, "epsilon": 0.01}
    samplers = [dasgrad.AdaptiveSampler(10_000, 32, device=device, **options) for device in ("cpu", "cuda")]
    for updated in (None, False, True):
        for sampler in samplers:
            if updated is False:
                sampler.refresh(scores)
            elif updated:
                sampler.update([3, 9999], [4.0, 0.5])
        (indices, weights), (found, found_weights) = (s._locate(uniforms.to(s.device)) for s in samplers)
        assert torch.equal(indices, found.cpu())
        torch.testing.assert_close(weights, found_weights.cpu(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("targeted", [False, True])
def test_draws_balanced_over_a_run_are_those_of_the_cpu(targeted):
    """Their accounts are in plain memory; through a refresh, an update and a state that is loaded."""
    target = torch.arange(1000.0).div(499_500).double() if targeted else None
    samplers = [dasgrad.AdaptiveSampler(1000, 48, target=target, seed=2, device=device) for device in ("cpu", "cuda")]
    changes = [
        lambda sampler: sampler.refresh(torch.linspace(0, 3, 1000)),
        lambda sampler: sampler.update([3, 999], [7.0, 0.0]),
        lambda sampler: sampler.load_state_dict(sampler.state_dict()),
    ]
    for change in changes:
        for sampler in samplers:
            change(sampler)
        for _ in range(20):
            (indices, weights), (found, found_weights) = (sampler.draw() for sampler in samplers)
            assert found.device.type == found_weights.device.type == "cuda"
            assert torch.equal(indices, found.cpu())
            assert torch.equal(weights, found_weights.cpu())


@pytest.mark.parametrize("stratified", ["none", "batch", "pass", "run"])
def test_draws_on_the_gpu_follow_p(stratified):
    """Chi-square on 10⁶ draws, by search and then from the tree."""
    sampler = dasgrad.AdaptiveSampler(40, 1000, stratified=stratified, seed=11, device="cuda")
    sampler.refresh(torch.linspace(0, 3, 40).exp())
    for _ in range(2):
        counts = torch.stack([torch.bincount(sampler.draw()[0], minlength=40) for _ in range(1000)]).sum(0)
        expected = sampler.probabilities * 1e6
        statistic = ((counts - expected).square() / expected).sum().item()
        assert stats.chi2.sf(statistic, 39) > 1e-4
        sampler.update([0, 39], [9.0, 1.0])
