"""A benchmark of the repository in a process of its own, on a made-up problem."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PROGRAM = """
import sys
sys.path[0] = {root!r}
for name in ("matplotlib", "pyarrow", "sklearn", "tqdm"):
    sys.modules[name] = None
import dataclasses, torch
torch.set_num_threads(1)
from benchmarks.wallclock.cases import CASES
from benchmarks.wallclock.models import make_perceptron
from dasgrad.experiments.datasets import Split
from dasgrad.experiments.problems import Problem, binary_cross_entropy, count_right_signs

def build():
    inputs = torch.randn({num_examples}, 5, generator=torch.Generator().manual_seed(0))
    targets = (inputs[:, 0] > 1).long()
    make = lambda seed: make_perceptron(seed, 5, 4)
    return Problem(Split((inputs, targets), (inputs, targets)), make, binary_cross_entropy, count_right_signs)

for name in ("rare", "mnist"):
    CASES[name] = dataclasses.replace(CASES[name], build=build)
from benchmarks.__main__ import main
main()
"""


def run_benchmark(folder: Path, *arguments: str, num_examples: int) -> subprocess.CompletedProcess[str]:
    """``python -m benchmarks`` in this folder, "rare" and "mnist" a small problem, without packages for reports."""
    program = _PROGRAM.format(root=str(ROOT), num_examples=num_examples)
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
