"""Rows as a page of Markdown, with the machine, the versions and the date they are from."""

import datetime
import os
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


def describe_machine() -> str:
    """Date, versions and hardware in one line."""
    parts = [datetime.datetime.now(datetime.UTC).date().isoformat()]
    for package in ("dasgrad", "opacus", "backpack-for-pytorch", "triton"):
        try:
            parts.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    parts += [f"torch {torch.__version__}", f"Python {platform.python_version()}"]
    if torch.cuda.is_available():
        parts.append(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    cpus = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.+)$", cpus.read_text("utf8"), re.MULTILINE) if cpus.exists() else None
    parts.append(f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores, {platform.system()}")
    return "; ".join(parts)


def table(rows: Sequence[Row]) -> str:
    """One line a row; a column for bars where some row has one."""
    barred = any(row.get("bar") is not None for row in rows)
    lines = ["| metric | ours | peer | | ratio |" + (" bar |" if barred else "")]
    lines.append("|---|---|---|---|---|" + ("---|" if barred else ""))
    for row in rows:
        line = f"| {row['metric']} | {row['ours']:.4g} | {row['peer']:.4g} | {row['peer_name']} | {row['ratio']:.3g} |"
        bar = row.get("bar")
        lines.append(line + (f" {'' if bar is None else format(bar, '.3g')} |" if barred else ""))
    return "\n".join(lines) + "\n"


def page(name: str, body: str) -> str:
    """A page for ``benchmarks/results``."""
    return f"# `python -m benchmarks {name}`\n\n{describe_machine()}.\n\n{body}"
