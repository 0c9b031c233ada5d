"""What a run leaves behind: one Parquet file with its curves, and in its metadata all that made them.

Files appear whole or not at all: they are written beside their place, synced, and moved into it. A file that
cannot be read, or is not the record of the configuration asked for, is reported by `RecordError` and never used.
"""

import hashlib
import io
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import dasgrad
from dasgrad import atomic

SCHEMA_VERSION = 2
READ_VERSIONS = (1, 2)
"""Version 1 had neither cases nor the columns of `DRAW_COLUMNS`; it is read without them."""
METADATA_KEY = b"dasgrad"
COLUMNS = (
    "step",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "seconds",
    "scoring_seconds",
    "gradient_evaluations",
    "scored_examples",
)
"""What every record has."""
DRAW_COLUMNS = ("effective_sample_size", "largest_weight", "entropy", "gain", "staleness")
"""What records of adaptive draws have besides, about the probabilities at each point of the curves:
the share of draws that would do as well were they of weight 1, 1/Σπ²/p; max w; −Σ p log p in nats; E_π[s²]/(E_π s)²;
and steps since the scores were computed. The last two are NaN before the first scores."""

# pyarrow is imported where it is used: experiments can be listed, and the command line can say what is missing,
# without the extra.


class RecordError(Exception):
    """A file is not the record it should be; the message names file and reason."""


@dataclass(frozen=True)
class RunConfig:
    """A run, resolved: two runs with equal configurations give equal curves, timings aside, and on a GPU rounding."""

    experiment: str
    method: str
    lr: float
    seed: int
    num_steps: int
    batch_size: int
    refresh: int | None
    """J, or None for methods that score nothing."""
    evaluation_interval: int
    device: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else the method runs with; plain values."""
    case: str = ""
    """Which of an experiment's problems, where it has several: a variance, a task."""

    def as_plain(self) -> dict[str, Any]:
        """The configuration as JSON holds it."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @property
    def file_name(self) -> str:
        """Case, method, learning rate and seed to be read by people, a hash of all to keep settings apart."""
        digest = hashlib.sha256(json.dumps(self.as_plain(), sort_keys=True).encode()).hexdigest()[:10]
        return f"{self.case and self.case + '-'}{self.method}-lr{self.lr:g}-seed{self.seed}-{digest}.parquet"


@dataclass(frozen=True, eq=False)
class Record:
    """A finished run."""

    config: RunConfig
    curves: dict[str, NDArray[np.float64]]
    """`COLUMNS`, `DRAW_COLUMNS` for adaptive draws, and those of the experiment's own."""
    versions: dict[str, str]
    machine: dict[str, Any]

    def final(self, column: str) -> float:
        """The last value of a curve."""
        return float(self.curves[column][-1])


def current_versions() -> dict[str, str]:
    """Versions that a run's numbers depend on."""
    return {"dasgrad": dasgrad.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """CPU model, cores, system and, where it is the device, the GPU, for reading timings."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    machine = {"cpu": model, "cores": os.cpu_count(), "system": platform.platform()}
    return machine | {"gpu": torch.cuda.get_device_name()} if device == "cuda" else machine


def read_folder(folder: Path) -> tuple[dict[Path, Record], dict[Path, str]]:
    """All records in a folder, by path, and why the other Parquet files in it are none, in the order of names."""
    found: dict[Path, Record] = {}
    unusable: dict[Path, str] = {}
    for path in sorted(folder.glob("*.parquet")):
        try:
            found[path] = load_record(path)
        except (RecordError, OSError) as error:
            unusable[path] = str(error)
    return found, unusable


def write_record(path: Path, record: Record) -> None:
    """Write a record, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = {
        "schema_version": SCHEMA_VERSION,
        "config": record.config.as_plain(),
        "versions": record.versions,
        "machine": record.machine,
    }
    table = pa.table(record.curves).replace_schema_metadata({METADATA_KEY: json.dumps(about).encode()})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, write_page_checksum=True)
    atomic.write(path, buffer.getvalue())


def read_record(path: Path, config: RunConfig) -> Record:
    """The record of ``config`` at ``path``.

    Raises:
        FileNotFoundError: when there is none.
        RecordError: when the file is damaged, was not written by this library, has another schema version,
            holds another configuration, or comes from other versions of dasgrad or torch.
    """
    record = load_record(path)
    if record.config.as_plain() != config.as_plain():
        raise RecordError(f"{path}: holds another configuration than its name says")
    now = current_versions()
    for name in ("dasgrad", "torch"):
        if record.versions.get(name) != now[name]:
            raise RecordError(f"{path}: written with {name} {record.versions.get(name)}, this is {name} {now[name]}")
    return replace(record, config=config)


def load_record(path: Path) -> Record:
    """The record at ``path``, whatever run it is of, with all its columns of numbers.

    Raises:
        FileNotFoundError: when there is none.
        RecordError: when the file is damaged, was not written by this library, or has another schema version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = path.read_bytes()
    try:
        table = pq.read_table(io.BytesIO(content), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from error
    about = _parse_metadata(path, (table.schema.metadata or {}).get(METADATA_KEY))
    config = _parse_config(path, about["config"])
    return Record(config, _read_curves(path, table), about["versions"], about["machine"])


def _parse_metadata(path: Path, raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        raise RecordError(f"{path}: not written by dasgrad (no {METADATA_KEY.decode()!r} metadata)")
    try:
        about = json.loads(raw)
    except ValueError as error:
        raise RecordError(f"{path}: its metadata is not JSON ({error})") from error
    if not isinstance(about, dict) or about.get("schema_version") not in READ_VERSIONS:
        found = about.get("schema_version") if isinstance(about, dict) else None
        raise RecordError(f"{path}: has schema version {found!r}, this library writes {SCHEMA_VERSION}")
    for key in ("config", "versions", "machine"):
        if not isinstance(about.get(key), dict):
            raise RecordError(f"{path}: its metadata has no {key!r}")
    return about


def _parse_config(path: Path, plain: dict[str, Any]) -> RunConfig:
    try:
        config = RunConfig(**plain)
    except TypeError as error:
        raise RecordError(f"{path}: its configuration is not one of this version ({error})") from error
    kinds: dict[str, type | tuple[type, ...]] = {
        "experiment": str,
        "method": str,
        "lr": (int, float),
        "seed": int,
        "num_steps": int,
        "batch_size": int,
        "device": str,
        "options": Mapping,
        "case": str,
    }
    for name, kind in kinds.items():
        if not isinstance(getattr(config, name), kind):
            raise RecordError(f"{path}: its configuration has {name} = {getattr(config, name)!r}")
    return config


def _read_curves(path: Path, table: Any) -> dict[str, NDArray[np.float64]]:
    """The columns every record has, and those it has besides, as far as they hold numbers."""
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing or table.num_rows == 0:
        reason = f"lacks the columns {', '.join(missing)}" if missing else "has no rows"
        raise RecordError(f"{path}: {reason}")
    curves = {}
    for name in (*COLUMNS, *(name for name in table.column_names if name not in COLUMNS)):
        values = table.column(name).to_numpy()
        if np.issubdtype(values.dtype, np.number) or np.issubdtype(values.dtype, np.bool_):
            curves[name] = values.astype(np.float64)
        elif name in COLUMNS:
            raise RecordError(f"{path}: its column {name} holds no numbers")
    return curves
