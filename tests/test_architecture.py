"""The shape of the package: public names, and one direction of imports."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import dasgrad

ROOT = Path(dasgrad.__file__).parent
MODULES = {
    ".".join(("dasgrad", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}
APART = ("optim", "sampling", "scoring")
OUTER = ("experiments", "report", "cli", "__main__")


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "dasgrad"}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_data_flows_one_way(module):
    mine = part(module)
    theirs = {part(name) for name in imports(MODULES[module])}
    if mine in APART:
        assert not theirs & (set(APART) - {mine}), f"{mine} must not import {theirs & set(APART)}"
        assert "training" not in theirs
    if mine not in OUTER:
        assert not theirs & set(OUTER), "the core never imports experiments, reports or the command line"
    if mine not in ("reference", "theory", *OUTER):
        assert "reference" not in theirs, "the specification serves tests, not the product"


def test_every_public_name_is_there_and_sorted():
    assert sorted(dasgrad.__all__) == dasgrad.__all__
    for name in dasgrad.__all__:
        assert getattr(dasgrad, name) is not None
    for name in ("moments", "projections", "reference", "targets", "theory"):
        importlib.import_module(f"dasgrad.{name}")


def test_the_core_needs_torch_and_numpy_alone():
    """Import the package with every extra hidden."""
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'pyarrow', 'sklearn', 'tqdm', 'scipy', 'pandas'): sys.modules[name] = None\n"
        "import dasgrad, dasgrad.reference, dasgrad.theory\n"
        "print(dasgrad.__version__)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == dasgrad.__version__


def test_modules_stay_small():
    sizes = {module: len(path.read_text(encoding="utf8").splitlines()) for module, path in MODULES.items()}
    assert not {module: size for module, size in sizes.items() if size > 500}


def test_the_package_is_marked_as_typed():
    assert (ROOT / "py.typed").exists()


def test_importing_asks_nothing_of_a_gpu():
    """Processes that are forked after such a question cannot use CUDA, and torch's optimizers fail in them."""
    code = """
import importlib.util

import torch

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: True if name == "triton" else find_spec(name, *rest)

def refuse(*args):
    raise AssertionError("a GPU was asked for")

for name in ("is_available", "device_count", "init", "_lazy_init", "current_device"):
    setattr(torch.cuda, name, refuse)
torch._C._cuda_getDeviceCount = refuse
import dasgrad, dasgrad.theory, dasgrad.experiments, dasgrad.report
"""
    subprocess.run([sys.executable, "-c", code], check=True)
