"""What records a folder has, for people."""

from collections.abc import Sequence
from pathlib import Path

from dasgrad.experiments.records import Record, read_folder
from dasgrad.experiments.registry import TUNING_SEED_OFFSET


def describe_folder(folder: Path) -> tuple[str, int]:
    """The records in a folder and in the folders of it, and the number of files that are damaged or foreign.

    Every file is read whole, so that a damaged one is found here and not in a report.
    """
    blocks: list[str] = []
    unusable: dict[Path, str] = {}
    for place in sorted({path.parent for path in folder.rglob("*.parquet")}):
        records, bad = read_folder(place)
        unusable |= bad
        groups: dict[tuple[str, str, int, str], list[Record]] = {}
        for record in records.values():
            config = record.config
            groups.setdefault((config.experiment, config.case, config.num_steps, config.device), []).append(record)
        blocks += [_describe_group(place, *key, found) for key, found in sorted(groups.items())]
    if unusable:
        lines = [f"{len(unusable)} files are no records; `dasgrad run` makes such runs again:"]
        blocks.append("\n".join([*lines, *(f"  {reason}" for reason in unusable.values())]))
    return "\n\n".join(blocks) or f"{folder} holds no records; `dasgrad run NAME` makes some.", len(unusable)


def _describe_group(
    place: Path, experiment: str, case: str, num_steps: int, device: str, records: Sequence[Record]
) -> str:
    reported = [record for record in records if record.config.seed < TUNING_SEED_OFFSET]
    num_tuning = len(records) - len(reported)
    name = f"{experiment}, {case}" if case else experiment
    lines = [f"{name}: {num_steps:,} steps on {device}, {len(reported)} runs and {num_tuning} of tuning, in {place}"]
    by_method: dict[str, list[Record]] = {}
    for record in reported:
        by_method.setdefault(record.config.method, []).append(record)
    width = max((len(method) for method in by_method), default=0)
    for method, runs in by_method.items():
        rates = sorted({run.config.lr for run in runs})
        settings = len({tuple(sorted((k, str(v)) for k, v in run.config.options.items())) for run in runs})
        several = f", {settings} settings" if settings > 1 else ""
        shown = ", ".join(f"{lr:g}" for lr in rates)
        lines.append(f"  {method.ljust(width)}  seeds {_ranges([r.config.seed for r in runs])}, α {shown}{several}")
    versions = sorted({f"dasgrad {r.versions.get('dasgrad')}, torch {r.versions.get('torch')}" for r in records})
    return "\n".join([*lines, f"  made with {'; '.join(versions)}"])


def _ranges(numbers: Sequence[int]) -> str:
    """``0–4, 7`` for 0, 1, 2, 3, 4, 7."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in runs)
