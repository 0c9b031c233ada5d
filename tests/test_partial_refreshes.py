"""The benchmark of partial refreshes: its rules on records whose outcome is known, and one run from end to end."""

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
if not (ROOT / "benchmarks").exists():
    pytest.skip("needs the repository", allow_module_level=True)
sys.path.append(str(ROOT))

from benchmarks.parts.refreshes import FRESH, RULES, TRAINED, Choice, replay  # noqa: E402 - onto the path above

from benchmark_process import run_benchmark  # noqa: E402

BY_NAME = {rule.name: rule for rule in RULES}


def make_record(num_times=40, num_examples=600):
    """Scores that never change."""
    scores = torch.rand(num_examples, generator=torch.Generator().manual_seed(0)) ** 3 + 0.01
    return scores.repeat(num_times, 1)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_where_nothing_ages_every_rule_is_as_good_as_fresh_scores(rule):
    record = make_record()
    fresh, cost = replay(record, FRESH, seed=0)
    assert cost == 40
    left, cost = replay(record, rule, seed=0)
    assert 1 <= cost <= 40
    own_scales = rule.name == "slices, each over its mean"  # slices' means differ by chance
    torch.testing.assert_close(left, fresh, rtol=0.1 if own_scales else 1e-6, atol=0)


@pytest.mark.parametrize("name", ["slices as they are", "slices, each over its mean", "slices on one scale"])
def test_where_all_scores_shrink_slices_lag_unless_put_on_one_scale(name):
    record = make_record() / torch.arange(1, 41)[:, None]
    fresh, left = (replay(record, rule, seed=0)[0] for rule in (FRESH, BY_NAME[name]))
    lag = float((left / fresh)[1:10].mean())
    assert (lag > 1.2) == (name == "slices as they are")


@pytest.mark.parametrize(
    ("name", "times"),
    [("all, steps ×2", [1, 2, 4, 8, 16, 32]), ("all, steps ×4", [1, 4, 16]), ("all, every 120 steps", [1, 13, 25, 37])],
)
def test_turns(name, times):
    choice = Choice(BY_NAME[name], 10, seed=0)
    assert [time for time in range(1, 41) if choice.is_due(time)] == times


def test_where_scores_come_and_go_remembered_ones_leave_less():
    """Half of what scores differ by lasts; of the rest a fresh score says nothing about the next turn."""
    generator = torch.Generator().manual_seed(0)
    own, moment = torch.randn(600, generator=generator), torch.randn(160, 600, generator=generator)
    record = (own + moment).exp()
    left, remembered = (
        float(replay(record, BY_NAME[f"all, every 120 steps{kind}"], seed=0)[0][100:].mean())
        for kind in ("", ", remembered")
    )
    assert remembered < 0.9 * left


def test_slices_reach_every_example():
    choice, masses = Choice(BY_NAME["slices as they are"], 600, seed=0), torch.ones(600)
    assert len(choice.choose(1, masses)) == 600
    found = torch.cat([choice.choose(time, masses) for time in range(2, 14)])
    assert len(found) == 12 * 51
    assert set(found.tolist()) == set(range(600))


# --- from end to end --------------------------------------------------------------------------------------


def call(tmp_path, *arguments):
    return run_benchmark(tmp_path, "ages", *arguments, num_examples=4000)


def test_a_quick_run_from_end_to_end(tmp_path):
    done = call(tmp_path, "rare", "training", "--quick", "--json", "rows.json", "--md", "page.md")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 2 * len(RULES) + len(TRAINED)
    for row in rows:
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
        assert row["num_seeds"] == 2
    left = {row["rule"]: row for row in rows if row.get("steps") == "20 to 300"}
    assert list(left) == list(BY_NAME)
    assert left[FRESH.name]["ratio"] == 1
    assert left["all, steps ×1.5"]["cost"] == 9
    page = (tmp_path / "page.md").read_text()
    assert all(f"| {rule.name} |" in page for rule in (*RULES, *TRAINED))


@pytest.mark.parametrize(("arguments", "message"), [(["rar"], "rar"), (["--seeds", "1"], "at least 2")])
def test_what_cannot_be_is_refused(tmp_path, arguments, message):
    done = call(tmp_path, *arguments)
    assert done.returncode == 1
    assert message in done.stderr
