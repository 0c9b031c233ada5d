"""From a folder to sets of comparable runs: what can be compared is put together, what cannot be read is named."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dasgrad.experiments.draws import DRAWS_PREFIX, Draws, draws_name, read_draws
from dasgrad.experiments.records import Record, RecordError, load_record
from dasgrad.experiments.registry import TUNING_SEED_OFFSET

PROBLEM_OPTIONS = ("variance", "feature_variance", "task", "mixture", "problem")
"""Options that say what is trained and not how; runs that differ in one are not compared."""


class NothingToReport(Exception):  # noqa: N818 (the folder is as it is; the message says so)
    """A folder holds no record that can be read; carries what was found instead."""

    def __init__(self, folder: Path, left_out: Sequence["LeftOut"]) -> None:
        found = f" ({len(left_out)} other or unreadable files)" if left_out else ""
        super().__init__(f"{folder} holds no finished runs{found}: `dasgrad run NAME --out {folder}` makes some")
        self.left_out = list(left_out)


@dataclass(frozen=True)
class LeftOut:
    """A file that is not shown, and why."""

    file: str
    reason: str


@dataclass(frozen=True, eq=False)
class Series:
    """The runs of one method in one setting, by seed."""

    name: str
    """The method, and where a run set has several variants of it, what sets this one apart."""
    runs: tuple[Record, ...]
    draws: Draws | None = None

    @property
    def method(self) -> str:
        """The method's name in the records."""
        return self.runs[0].config.method

    @property
    def adaptive(self) -> bool:
        """Whether examples are scored and drawn by importance."""
        return self.runs[0].config.refresh is not None

    @property
    def seeds(self) -> list[int]:
        """In increasing order."""
        return [run.config.seed for run in self.runs]

    def at(self, seeds: Iterable[int]) -> list[Record]:
        """The runs of some of the seeds."""
        by_seed = {run.config.seed: run for run in self.runs}
        return [by_seed[seed] for seed in seeds]


@dataclass(frozen=True, eq=False)
class RunSet:
    """Runs of one experiment that differ in method and seed alone."""

    name: str
    """Of its own in the page, made of experiment, folder and settings as far as needed."""
    folder: str
    series: tuple[Series, ...]
    num_tuning_runs: int = 0
    problem: dict[str, Any] = field(default_factory=dict)
    """The case of the experiment that its runs are of, and those of `PROBLEM_OPTIONS` that they have."""

    @property
    def experiment(self) -> str:
        """The experiment's name in the records."""
        return self.series[0].runs[0].config.experiment

    @property
    def num_steps(self) -> int:
        """Optimizer steps of a run."""
        return self.series[0].runs[0].config.num_steps


@dataclass(frozen=True, eq=False)
class Collection:
    """All that a folder holds."""

    sets: list[RunSet]
    left_out: list[LeftOut]


def collect(folder: Path, ignore: Iterable[Path] = ()) -> Collection:
    """Read every record under ``folder``.

    Args:
        folder: with records in it or in folders of it.
        ignore: files and folders that are no news, such as an earlier report.

    Raises:
        NothingToReport: when there is no record that can be read.
    """
    records: dict[str, list[tuple[str, Record]]] = defaultdict(list)
    draws: dict[tuple[str, str], Draws] = {}
    left_out: list[LeftOut] = []
    for path in _files(folder, {path.resolve() for path in ignore}):
        place, file = path.parent.relative_to(folder).as_posix(), path.relative_to(folder).as_posix()
        try:
            if path.name.startswith(DRAWS_PREFIX) and path.suffix == ".npz":
                draws[place, path.name] = read_draws(path)
            elif path.suffix == ".parquet":
                records[place].append((path.name, load_record(path)))
            elif not _is_own_output(path):
                left_out.append(LeftOut(file, "not a record of a run"))
        except RecordError as error:
            left_out.append(LeftOut(file, str(error).removeprefix(f"{path}: ")))
        except OSError as error:
            left_out.append(LeftOut(file, f"cannot be read ({error.strerror or error})"))
    sets: list[RunSet] = []
    for place, found in sorted(records.items()):
        sets += _split_into_sets(place, found, draws, left_out)
    if not sets:
        raise NothingToReport(folder, left_out)
    return Collection(_name_apart(sets), left_out)


def _files(folder: Path, ignore: set[Path]) -> list[Path]:
    """All files, in a fixed order; links to folders are not followed, hidden files and folders are not ours."""
    found = []
    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(n for n in folders if not n.startswith(".") and (here / n).resolve() not in ignore)
        found += [here / n for n in sorted(names) if not n.startswith(".") and (here / n).resolve() not in ignore]
    return found


def _is_own_output(path: Path) -> bool:
    """Whether `dasgrad run` writes a file of this name beside its records."""
    case = r"(-[\w.-]+)?"
    own = rf"summary{case}\.csv|{re.escape(path.parent.name)}{case}\.(png|svg)"
    return re.fullmatch(own, path.name) is not None


def _split_into_sets(
    place: str, found: Sequence[tuple[str, Record]], draws: dict[tuple[str, str], Draws], left_out: list[LeftOut]
) -> list[RunSet]:
    groups: dict[str, list[tuple[str, Record]]] = defaultdict(list)
    for name, record in found:
        config = record.config
        setting = (config.experiment, config.num_steps, config.batch_size, config.evaluation_interval, config.device)
        groups[_stable([*setting, _problem_of(record)])].append((name, record))
    sets = []
    for _, group in sorted(groups.items(), key=lambda item: _in_order(item[0])):
        reported = [(name, record) for name, record in group if record.config.seed < TUNING_SEED_OFFSET]
        if not reported:
            config = group[0][1].config
            why = f"{len(group)} tuning runs of {config.num_steps} steps, and none to report yet"
            left_out.append(LeftOut(f"{place}/{config.experiment}", why))
            continue
        series = _split_into_series(place, reported, draws, left_out)
        sets.append(RunSet("", place, series, len(group) - len(reported), _problem_of(reported[0][1])))
    return sets


def _split_into_series(
    place: str, reported: Sequence[tuple[str, Record]], draws: dict[tuple[str, str], Draws], left_out: list[LeftOut]
) -> tuple[Series, ...]:
    variants: dict[str, dict[str, list[tuple[str, Record]]]] = defaultdict(lambda: defaultdict(list))
    for name, record in reported:
        config = record.config
        variants[config.method][_stable([config.lr, config.refresh, dict(config.options)])].append((name, record))
    found: list[Series] = []
    for method, groups in variants.items():
        names = _tell_apart([group[0][1] for group in groups.values()])
        for suffix, group in zip(names, groups.values(), strict=True):
            steps = group[0][1].curves["step"]
            runs: dict[int, Record] = {}
            shown: Draws | None = None
            for name, record in group:
                if record.config.seed in runs:
                    left_out.append(LeftOut(f"{place}/{name}", "the same run as another file"))
                elif not np.array_equal(record.curves["step"], steps):
                    left_out.append(LeftOut(f"{place}/{name}", "measured at other steps than the runs it belongs to"))
                else:
                    runs[record.config.seed] = record
                    shown = shown or draws.get((place, draws_name(name)))
            ordered = tuple(run for _, run in sorted(runs.items()))
            found.append(Series(f"{method} ({suffix})" if suffix else method, ordered, shown))
    return tuple(sorted(found, key=lambda series: (not series.adaptive, series.name)))


def _tell_apart(records: Sequence[Record]) -> list[str]:
    """For variants of one method, the settings in which they differ; empty for a single one."""
    plain = [{"lr": r.config.lr, "refresh": r.config.refresh, **r.config.options} for r in records]
    keys = [key for key in dict.fromkeys(k for p in plain for k in p) if len({_stable(p.get(key)) for p in plain}) > 1]
    return [", ".join(f"{key} {_plainly(p.get(key))}" for key in keys) for p in plain]


def _name_apart(sets: Sequence[RunSet]) -> list[RunSet]:
    """Give each set the shortest name that no other has."""
    configs = [s.series[0].runs[0].config for s in sets]
    names = [s.experiment for s in sets]
    parts = [
        [_describe_problem(s.problem) for s in sets],
        [f"{config.num_steps:,} steps" for config in configs],
        [f"batch {config.batch_size}" for config in configs],
        [config.device for config in configs],
        [f"in {s.folder}" for s in sets],
        [f"number {k + 1}" for k in range(len(sets))],
    ]
    for part in parts:
        names = [
            f"{name}, {part[k]}"
            if part[k] and len({part[j] for j, other in enumerate(names) if other == name}) > 1
            else name
            for k, name in enumerate(names)
        ]
    return [RunSet(n, s.folder, s.series, s.num_tuning_runs, s.problem) for n, s in zip(names, sets, strict=True)]


def _in_order(text: str) -> list[Any]:
    """A key by which numbers in names come in their order: 2 before 10."""
    return [float(part) if k % 2 else part for k, part in enumerate(re.split(r"(\d+(?:\.\d+)?)", text))]


def _problem_of(record: Record) -> dict[str, Any]:
    case = getattr(record.config, "case", "")
    named = {"case": case} if case else {}
    return named | {key: record.config.options[key] for key in PROBLEM_OPTIONS if key in record.config.options}


def _describe_problem(problem: dict[str, Any]) -> str:
    if "case" in problem:
        return str(problem["case"])
    return ", ".join(f"{key} {_plainly(value)}" for key, value in problem.items())


def _stable(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _plainly(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
