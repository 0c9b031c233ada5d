from pathlib import Path

import numpy as np
import pytest
import torch

import dasgrad
from dasgrad.experiments import DIGITS, Settings
from dasgrad.experiments.curves import trace
from dasgrad.experiments.draws import DrawRecorder, draws_name, pictures_of, read_draws, write_draws
from dasgrad.experiments.records import RecordError
from dasgrad.experiments.runner import make_config, perform
from report.made import make_draws

SETTINGS = Settings(num_seeds=2, num_steps=30, batch_size=32, refresh=10)


def test_watching_changes_nothing_and_sees_every_draw() -> None:
    problem = DIGITS.build()
    config = make_config(DIGITS, SETTINGS, "dasgrad", 0.3, 0)
    recorder = DrawRecorder(1437)
    watched, alone = trace(problem, config, draws=recorder), trace(problem, config)
    np.testing.assert_array_equal(watched["train_loss"], alone["train_loss"])
    draws = recorder.finish(*problem.data.train)
    assert draws.num_examples == 1437
    assert draws.steps[-1] == 30
    assert recorder._counts.sum() == 30 * 32
    np.testing.assert_allclose(draws.quantiles[0], 1.0, rtol=1e-6)  # uniform before the first refresh
    assert draws.quantiles[-1, -1] > 1 > draws.quantiles[-1, 0]
    np.testing.assert_allclose(draws.ratios * draws.weights, 1.0, rtol=1e-5)
    assert (np.diff(draws.ratios.mean(0)) <= 1e-12).all()
    assert draws.pictures is not None
    assert draws.pictures.shape[1:] == (8, 8)
    inputs, targets = problem.data.train
    assert draws.labels is not None
    np.testing.assert_array_equal(draws.labels, targets[torch.from_numpy(draws.indices)])
    expected = (inputs[int(draws.indices[0])] * 255).round().reshape(8, 8)
    np.testing.assert_array_equal(draws.pictures[0], expected)


def test_the_first_seed_of_adaptive_methods_leaves_its_draws(tmp_path: Path) -> None:
    for method, seed in (("dasgrad", 0), ("dasgrad", 1), ("adam", 0)):
        config = make_config(DIGITS, SETTINGS, method, 0.3, seed)
        path = tmp_path / config.file_name
        perform(config, path)
        assert (tmp_path / draws_name(path.name)).exists() == (method == "dasgrad" and seed == 0)
    (found,) = tmp_path.glob("draws-*.npz")
    assert found.stat().st_size < 100_000
    assert read_draws(found).num_examples == 1437


def test_draws_come_back_as_written(tmp_path: Path) -> None:
    draws = make_draws()
    write_draws(tmp_path / "draws-x.npz", draws)
    back = read_draws(tmp_path / "draws-x.npz")
    for name, value in vars(draws).items():
        np.testing.assert_allclose(getattr(back, name), value, rtol=1e-6)
    plain = make_draws(pictures=False)
    write_draws(tmp_path / "draws-y.npz", plain)
    assert read_draws(tmp_path / "draws-y.npz").pictures is None


def test_damaged_draws_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "draws-x.npz"
    write_draws(path, make_draws())
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(RecordError, match=r"draws-x\.npz"):
            read_draws(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(RecordError, match="not a readable record of draws"):
        read_draws(path)
    monkeypatch.setattr("dasgrad.experiments.draws.DRAWS_VERSION", 9)
    path.write_bytes(whole)
    with pytest.raises(RecordError, match="has schema version 1, this is 9"):
        read_draws(path)


def test_what_is_a_picture() -> None:
    chosen = np.array([0, 2])
    assert pictures_of(torch.rand(4, 3, 5, 6), chosen).shape == (2, 5, 6, 3)
    assert pictures_of(torch.randn(4, 1, 5, 6), chosen).shape == (2, 5, 6)
    assert pictures_of(torch.rand(4, 28, 28), chosen).shape == (2, 28, 28)
    assert pictures_of(torch.rand(4, 784), chosen).shape == (2, 28, 28)
    assert pictures_of(torch.randn(4, 784), chosen) is None  # no pixels
    assert pictures_of(torch.rand(4, 20), chosen) is None
    assert pictures_of(torch.rand(4, 4), chosen) is None
    assert pictures_of(dasgrad.SparseRows([0, 1, 1], [0], [1.0], 64), chosen) is None
