"""Recording: any run of the library, the run itself unchanged, memory bounded, and settings no theorem has refused."""

import numpy as np
import pytest
import torch

import dasgrad
import helpers
from dasgrad import theory
from dasgrad.theory import Scheme
from theory.convex import linear_model, lines, start_of, vector


def train(weighting="gradient", record=False, steps=8, **options):
    """An ordinary loop with model, loader and scorer; returns its parameters, and the trajectory if recorded."""
    inputs, targets, model = helpers.regression()
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.1, weighting=weighting)
    scorer = dasgrad.ExampleScorer(model, helpers.squared_losses, optimizer)
    loader = dasgrad.AdaptiveLoader((inputs, targets), batch_size=3, scorer=scorer, refresh=2)

    def loop():
        done = 0
        while done < steps:
            for batch in loader:
                optimizer.zero_grad()
                batch.backward(helpers.squared_losses(model(batch.inputs), batch.targets), optimizer)
                optimizer.step()
                done += 1

    if not record:
        loop()
        return model.weight.detach().clone(), None
    with theory.record(optimizer, loader, **options) as recorder:
        loop()
    assert recorder.num_steps == 8
    return model.weight.detach().clone(), recorder.trajectory()


@pytest.mark.parametrize("weighting", ["gradient", "update"])
def test_any_run_can_be_recorded_and_is_not_changed(weighting):
    plain, _ = train(weighting)
    watched, found = train(weighting, record=True, optimum=torch.ones(3, dtype=torch.float64))
    assert torch.equal(plain, watched)
    assert found.num_steps == 8
    assert not found.expected
    assert not found.uniform
    assert {"potential", "error", "momentum", "distance", "metric_trace"} <= set(found.curves)
    assert "regret" not in found.curves


def test_without_an_optimum_there_are_no_terms_but_statistics():
    _, found = train(record=True)
    assert "potential" not in found.curves
    with pytest.raises(ValueError, match=r"`Trajectory\.get` needs the curves regret, which this trajectory does not"):
        found.get("regret")
    with pytest.raises(ValueError, match="α/√t"):
        theory.bound_of(found)


def test_hooks_are_gone_afterwards():
    theta = torch.nn.Parameter(vector(1.0))
    optimizer = dasgrad.DASGrad([theta])
    with pytest.raises(RuntimeError, match="stop"), theory.record(optimizer):
        raise RuntimeError("stop")
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_memory_is_bounded_and_sums_do_not_depend_on_it():
    problem, scheme = linear_model("squares", 5, 2, 0), Scheme("amsgrad", adaptive=True)
    start = start_of(problem)
    all_points = theory.follow(problem, scheme, start, 130, 0)
    few = theory.follow(problem, scheme, start, 130, 0, max_points=10)
    assert len(all_points.steps) == 130
    assert len(few.steps) <= 11
    assert few.steps[-1] == 130
    at = few.steps.astype(int) - 1
    for name, curve in few.curves.items():
        np.testing.assert_array_equal(curve, all_points.curves[name][at], err_msg=name)


def test_recording_alone_gives_the_expectation_over_many_runs():
    """Terms of the draws made are unbiased: their mean over seeds is near the expectation over the next draw."""
    problem, scheme = lines([3.0, -1.0, -1.0], -1.0, 1.0), Scheme("sgd", alpha=0.2)
    exact = theory.enumerate_draws(problem, scheme, vector(0.5), 4)
    errors = []
    for seed in range(200):
        walk = theory.Walk(problem, scheme, vector(0.5), seed)
        with theory.record(walk.optimizer, optimum=problem.optimum) as recorder:
            walk.take_steps(4)
        errors.append(recorder.trajectory().get("error")[-1])
    found = theory.estimate(errors)
    assert found.low - 0.1 < exact.get("error")[-1] < found.high + 0.1


def fresh(**options):
    return dasgrad.DASGrad([torch.nn.Parameter(vector(0.0, 0.0))], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias_correction": True}, "bias_correction off, got True"),
        ({"weight_decay": 0.1}, "weight_decay off, got 0.1"),
        ({"maximize": True}, "maximize off"),
        ({"moments": dasgrad.moments.Moments()}, r"must have built-in moments, got Moments\(\)"),
    ],
)
def test_settings_no_theorem_has_are_refused(options, message):
    with pytest.raises(ValueError, match=message), theory.record(fresh(**options)):
        pass


def test_bad_arguments_are_named():
    def enter(*args, **options):
        with theory.record(*args, **options):
            pass

    with pytest.raises(TypeError, match=r"`record\(optimizer=\.\.\.\)` must be a `DASGrad`, got SGD"):
        enter(torch.optim.SGD([torch.nn.Parameter(vector(0.0))]))
    two = dasgrad.DASGrad([{"params": [torch.nn.Parameter(vector(0.0))]} for _ in range(2)])
    with pytest.raises(ValueError, match="one param group, for the theorems have one α, got 2"):
        enter(two)
    with pytest.raises(ValueError, match=r"max_points=\.\.\.\)` must be an integer of at least 2, got 1"):
        enter(fresh(), max_points=1)
    with pytest.raises(ValueError, match=r"diameter=\.\.\.\)` must be positive and finite, got 0"):
        enter(fresh(), diameter=0)
    with pytest.raises(TypeError, match=r"`record\(draws=\.\.\.\)` must be a loader or sampler of dasgrad, got list"):
        enter(fresh(), [])
    problem = linear_model("squares", 5, 2, 0)
    with pytest.raises(ValueError, match=r"batches of 1 of its 5 examples, got batches of 2 of 5"):
        enter(fresh(), dasgrad.AdaptiveSampler(5, 2, stratified="none"), problem=problem)
    with pytest.raises(ValueError, match=r"'none' or 'batch', got 'run'"):
        enter(fresh(), dasgrad.AdaptiveSampler(5, 1), problem=problem)
    with pytest.raises(ValueError, match=r"one parameter of shape \(2,\), got \[\(3,\)\]"):
        enter(dasgrad.DASGrad([torch.nn.Parameter(vector(0.0, 0.0, 0.0))]), problem=problem)
    data = helpers.Rows(torch.zeros(5, 2), torch.zeros(5))
    with pytest.raises(ValueError, match="must draw when it is asked to, got a loader with worker processes"):
        enter(fresh(), dasgrad.AdaptiveLoader(data, batch_size=1, num_workers=1))
    started = fresh()
    started.param_groups[0]["params"][0].grad = vector(1.0, 1.0)
    started.step()
    with pytest.raises(ValueError, match="must start before the first step"):
        enter(started)
    with theory.record(fresh()) as recorder, pytest.raises(ValueError, match="needs at least one recorded step"):
        recorder.trajectory()


def test_bad_problems_schemes_and_numbers_of_steps_are_named(monkeypatch):
    with pytest.raises(ValueError, match=r"`FiniteSum\(optimum=\.\.\.\)` must have shape \[d\] and dtype float64"):
        theory.FiniteSum(lambda x: x, lambda x: x, torch.zeros(2), 1)
    with pytest.raises(ValueError, match=r"`FiniteSum\(target=\.\.\.\)` must have shape \(2,\), got \(1,\)"):
        theory.FiniteSum(lambda x: x, lambda x: x, vector(0.0), 2, target=vector(1.0))
    with pytest.raises(ValueError, match=r"`Scheme\(alpha=\.\.\.\)` must be positive and finite, got 0"):
        Scheme(alpha=0)
    with pytest.raises(ValueError, match=r"`Scheme\(beta2=\.\.\.\)` must be in \[0, 1\), got 1.0"):
        Scheme(beta2=1.0)
    with pytest.raises(ValueError, match=r"`Scheme\(beta1_power=\.\.\.\)` must be finite and at least 0, got -1"):
        Scheme(beta1_power=-1)
    monkeypatch.setattr(theory.enumeration, "MAX_STATES", 20)
    with pytest.raises(ValueError, match=r"must lead to at most 20 states, got \d+ at step \d of 6; use `follow`"):
        theory.enumerate_draws(linear_model("squares", 3, 2, 0), Scheme("sgd"), vector(0.1, 0.1), 6)
    with pytest.raises(ValueError, match=r"num_steps=\.\.\.\)` must be a positive integer, got 0"):
        theory.enumerate_draws(lines([1.0], 0, 1), Scheme("sgd"), vector(0.1), 0)
    with pytest.raises(ValueError, match="must agree in alpha"):
        theory.average(
            [theory.follow(lines([1.0], 0, 1), Scheme("sgd", alpha=a), vector(0.1), 2, 0) for a in (1.0, 2.0)]
        )
    with pytest.raises(ValueError, match="at least one trajectory, got none"):
        theory.average([])
