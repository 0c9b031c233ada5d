"""Results as a page of markdown: what was measured, when, on which machine, with which versions."""

import datetime
import importlib.metadata
import math
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dasgrad.sampling import native

Row = dict[str, Any]
COLUMNS = ("metric", "ours", "peer", "peer_name", "ratio")


def write_markdown(path: Path, name: str, table: list[str], seconds: float) -> None:
    """Write a benchmark's page; what people wrote below the table of an older page stays."""
    notes = read_notes(path.read_text(encoding="utf8")) if path.exists() else ""
    core = "with" if native.available() else "without"
    text = (
        f"# `python -m benchmarks {name}`\n\n"
        f"{datetime.date.today().isoformat()}; {describe_machine()}; {describe_versions()}, {core} the native core; "
        f"{seconds:.0f} seconds.\n\n" + "\n".join(table) + "\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + (f"\n{notes}\n" if notes else ""), encoding="utf8")


def make_table(rows: Sequence[Row]) -> list[str]:
    """Lines of the table: the columns every benchmark has, then those of its own."""
    extra = list(dict.fromkeys(key for row in rows for key in row if key not in COLUMNS))
    titles = ["" if key == "peer_name" else key.replace("_", " ") for key in (*COLUMNS, *extra)]
    lines = [titles, ["---"] * len(titles), *([show(row.get(key, "")) for key in (*COLUMNS, *extra)] for row in rows)]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def show(value: Any) -> str:
    """A cell: numbers to four digits, nothing for None."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def finite(value: Any) -> Any:
    """The same with None for numbers that are infinite or none, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_notes(page: str) -> str:
    """What stands below the last table of a page."""
    lines = page.splitlines()
    last = max((number for number, line in enumerate(lines) if line.startswith("|")), default=len(lines))
    return "\n".join(lines[last + 1 :]).strip()


def describe_machine() -> str:
    """Model of the CPU, number of cores, operating system."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)$", info.read_text(encoding="utf8"), re.M) if info.exists() else None
    model = found[1].strip() if found else platform.processor() or platform.machine()
    gpu = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}; " if torch.cuda.is_available() else ""
    return f"{gpu}{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def describe_versions() -> str:
    """Python, dasgrad, what it is built on, and the peers that are installed."""
    required = (importlib.metadata.requires("dasgrad") or []) if version_of("dasgrad") else []  # or run from sources
    peers = [re.split(r"[^\w.-]", line)[0] for line in required if re.search(r"extra == .bench\b", line)]
    found = {
        name: version_of(name) for name in ("dasgrad", "numpy", *peers, "torchrl", "backpack-for-pytorch", "triton")
    }
    versions = [f"{name} {version}" for name, version in found.items() if version is not None]
    return ", ".join([f"Python {platform.python_version()}, torch {torch.__version__}", *versions])


def version_of(name: str) -> str | None:
    """The installed version, if there is one."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
