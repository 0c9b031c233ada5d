"""Does the wheel work where the sources are not? Built with a compiler and without one, installed alone, and tested.

Sources are copied to an empty folder and built there; the wheel goes into a new virtual environment, with the pinned
versions of everything else; tests, documentation and examples are copied to a third place and run against it. ``ours``
counts the tests that failed, ``peer`` is what that should be. Takes some minutes, most of them to install torch.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "setup.py", "pyproject.toml", "README.md", "LICENSE")
TESTED = ("tests", "docs", "examples", "benchmarks", "pyproject.toml", "Makefile", "README.md", "CHANGELOG.md")
# Links between the pages lead into the repository, which is not there.
LEFT_OUT = "tests/test_docs.py::test_links_and_paths_exist"
NO_COMPILER = {"CC": "no-compiler", "CXX": "no-compiler"}
WHAT_IS_INSTALLED = """
import dasgrad
print(dasgrad.SegmentTree([1.0]).compiled is not None, dasgrad.__file__)
"""


def copy(names: tuple[str, ...], folder: Path) -> None:
    """Copy files and folders of the project, without what was built in them."""
    folder.mkdir()
    built = shutil.ignore_patterns("*.so", "*.dll", "*.egg-info", "__pycache__")
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=built)
        else:
            shutil.copy(ROOT / name, folder / name)


def call(*command: str | Path, folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command in a folder, and return what it prints; an error shows all of that."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        list(map(str, command)), cwd=folder, env=inherited | (environment or {}), capture_output=True, text=True
    )
    if result.returncode:
        raise RuntimeError(f"{command} failed:\n{result.stdout}\n{result.stderr}")
    return result.stdout


def build(folder: Path, environment: dict[str, str]) -> Path:
    """The wheel of the sources, built in a folder of its own."""
    copy(SOURCES, folder)
    call(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", "dist", ".", folder=folder, environment=environment)
    (wheel,) = (folder / "dist").glob("dasgrad-*.whl")
    return wheel


def check(python: Path, tested: Path, *, native: bool) -> dict[str, int]:
    """Run the tests against what is installed, and return how many there were, failed and were skipped."""
    compiled, where = call(python, "-c", WHAT_IS_INSTALLED, folder=tested).split()
    if compiled != str(native) or ROOT in Path(where).parents:
        raise RuntimeError(f"a native core: {compiled}, installed at {where}")
    results = tested / "results.xml"
    command = [str(python), "-m", "pytest", "-q", "-n", "auto", f"--junitxml={results}", f"--deselect={LEFT_OUT}"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    output = subprocess.run(command, cwd=tested, env=inherited, capture_output=True, text=True, check=False).stdout
    print("\n".join(line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), flush=True)
    suite = ElementTree.parse(results).getroot()[0]
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    return {"run": counts["tests"] - counts["skipped"], "failed": counts["failures"] + counts["errors"]}


def run() -> list[dict[str, Any]]:
    """A row for the wheel with the native core, and one for the wheel without."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy(TESTED, folder / "tested")
        call(sys.executable, "-m", "venv", "environment", folder=folder)
        python = folder / "environment" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        install = (python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt")
        call(*install, "torch", "numpy", folder=folder)
        for native, variables in ((True, {}), (False, NO_COMPILER)):
            wheel = build(folder / f"sources-{native}", variables)
            call(*install, f"{wheel}[dev,experiments]", folder=folder)
            call(*install, "--force-reinstall", "--no-deps", wheel, folder=folder)
            counts = check(python, folder / "tested", native=native)
            metric = f"failures of {counts['run']} tests against {wheel.name}"
            failed, expected = float(counts["failed"]), 0.0
            rows.append(
                {"metric": metric, "ours": failed, "peer": expected, "peer_name": "none", "ratio": float(failed > 0)}
            )
    return rows
