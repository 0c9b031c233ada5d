"""Every example runs, without a warning, and comes to the result it is about."""

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def check_adaptive_loader(result: tuple[float, float]) -> None:
    assert all(0 < loss < 0.3 for loss in result)


def check_plain_dataloader(history: list[float]) -> None:
    assert len(history) == 2
    assert history[1] < 0.5 * history[0] < math.log(10)


def check_adamw(results: dict[str, float]) -> None:
    assert set(results) == {"shuffled training", "shuffled test", "adaptive training", "adaptive test"}
    assert all(loss < 1.0 for loss in results.values())


def check_simplex_weights(shares: torch.Tensor) -> None:
    assert shares.sum().item() == pytest.approx(1.0, abs=1e-6)
    assert bool((shares >= 0).all())
    torch.testing.assert_close(shares, torch.tensor([0.4, 0.3, 0.2, 0.1, 0, 0, 0]), atol=0.05, rtol=0)


def check_label_shift(results: dict[str, tuple[float, float]]) -> None:
    assert set(results) == {"training mix", "test mix"}
    assert all(loss < 1.5 and accuracy > 0.7 for loss, accuracy in results.values())


def check_gradient_accumulation(result: dict[str, int | float]) -> None:
    assert result["num_batches"] == 113
    assert 0 < result["num_skipped"] < 15
    assert result["num_steps"] == 113 // 4 - result["num_skipped"]
    assert result["loss"] < 1.5


def check_rare_events(results: dict[str, tuple[float, float]]) -> None:
    """Mean prediction over base rate, and Brier score; `test_rare_events` has many seeds."""
    assert 0.5 < results["adaptive"][0] < 2.0
    assert all(results[method][0] > 5.0 for method in ("oversampled", "class weights"))


CASES: dict[str, tuple[dict[str, int], Callable[[Any], None]]] = {
    "adaptive_loader": ({"num_passes": 2}, check_adaptive_loader),
    "adamw": ({"num_passes": 3}, check_adamw),
    "gradient_accumulation": ({"num_passes": 1}, check_gradient_accumulation),
    "label_shift": ({"num_passes": 3}, check_label_shift),
    "plain_dataloader": ({"num_passes": 2}, check_plain_dataloader),
    "rare_events": ({"num_examples": 4000}, check_rare_events),
    "simplex_weights": ({"num_passes": 4}, check_simplex_weights),
}


def test_every_example_has_a_case():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CASES)


# Newer Pythons warn when a DataLoader forks its workers while torch's threads run; torch's business.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_example_runs(name: str, capsys: pytest.CaptureFixture[str]):
    arguments, check = CASES[name]
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with torch.random.fork_rng():
        spec.loader.exec_module(module)
        assert capsys.readouterr().out == "", "importing an example must not run it"
        check(module.main(**arguments))
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", CASES)
def test_example_is_short_and_runs_as_a_script(name: str):
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert text.endswith('if __name__ == "__main__":\n    main()\n')
