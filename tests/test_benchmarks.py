"""How results of benchmarks are written down."""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="needs the repository")
ROWS = [
    {"metric": "seconds a step", "ours": 0.00012345, "peer": 1 / 3, "peer_name": "a|b", "ratio": 0.5},
    {"metric": "kills", "ours": 5.0, "peer": 5.0, "peer_name": "none", "ratio": 1.0, "while_saving": 3},
]


def write(path, rows=ROWS):
    """In a process of its own: the repository is not on the path of the tests."""
    code = (
        "import json, sys; from pathlib import Path; from benchmarks.parts import report\n"
        "report.write_markdown(Path(sys.argv[1]), 'loop', report.make_table(json.loads(sys.argv[2])), 12.3)"
    )
    subprocess.run([sys.executable, "-c", code, str(path), json.dumps(rows)], check=True, cwd=ROOT)
    return path.read_text(encoding="utf8")


def test_a_page_says_what_was_measured_on_what(tmp_path):
    page = write(tmp_path / "results" / "loop.md")
    title, _, about, _, head, _, first, second = page.splitlines()
    assert title == "# `python -m benchmarks loop`"
    for part in (
        f"Python {platform.python_version()}",
        f"torch {torch.__version__}",
        "numpy ",
        " cores, ",
        "12 seconds",
    ):
        assert part in about
    assert head == "| metric | ours | peer |  | ratio | while saving |"
    assert first == "| seconds a step | 0.0001234 | 0.3333 | a\\|b | 0.5 |  |"
    assert second == "| kills | 5 | 5 | none | 1 | 3 |"


def test_notes_below_the_table_outlive_a_new_measurement(tmp_path):
    path = tmp_path / "loop.md"
    page = write(path)
    path.write_text(page + "\nWhat a person wrote.\n\nTwo paragraphs.\n", encoding="utf8")
    again = write(path, ROWS[:1])
    assert again.endswith("|\n\nWhat a person wrote.\n\nTwo paragraphs.\n")
    assert "kills" not in again
    assert write(path, ROWS[:1]) == again


def test_helpers_are_no_benchmarks():
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], check=True, cwd=ROOT, capture_output=True, text=True
    )
    names = re.search(r"\{(.*?)\}", run.stdout)[1].split(",")
    assert {"loop", "step", "tree"} <= set(names)
    assert not any(name.startswith("_") for name in names)
