"""Does a run survive SIGKILL? Killed 50 times at random moments, resumed each time, compared step by step.

A small regression with dropout and random augmentation saves a checkpoint every few steps. It is killed at random
moments (fixed seeds), while starting, loading, training and saving, and started again until it is done. ``ours``
counts the steps whose draws and parameters were those of the uninterrupted run, ``peer``, bit for bit, every time
they were made; one step that differs is an error. Once with the data set in this process, once with two workers.
"""

import hashlib
import json
import mmap
import multiprocessing
import os
import random
import signal
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import dasgrad

NUM_KILLS, STEPS_PER_KILL, SAVE_EVERY, BATCH_SIZE = 50, 10, 4, 4
FORK: Any = multiprocessing.get_context("fork")  # torch is imported once, not for every life


@dataclass(frozen=True)
class Outcome:
    """What came of a run that was killed again and again; it was equal to the uninterrupted one."""

    num_steps: int
    num_kills: int
    num_kills_while_starting: int
    """Before the first step of a life: building, loading, starting workers."""
    num_kills_while_saving: int
    num_repeated_steps: int
    """Steps made more than once, because the checkpoint was older than the kill."""


class Progress:
    """What a life tells the process that will kill it; memory that both share, so that it outlasts the kill."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16)

    def write(self, step: int, saving: bool = False) -> None:
        """Tell the number of finished steps, and whether a save is going on."""
        self._memory[:16] = struct.pack("qq", step, saving)

    def read(self) -> tuple[int, bool]:
        """The last that was told; step −1 before the first."""
        step, saving = struct.unpack("qq", self._memory[:16])
        return step, bool(saving)


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Examples with noise from all three global generators."""

    def __init__(self, clean: TensorDataset) -> None:
        self.clean = clean

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = self.clean[index]
        noise = torch.randn(8) + np.random.standard_normal() + random.gauss(0, 1)  # noqa: NPY002 (the global one)
        return inputs + 0.1 * noise.float(), target


def squared_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss per example."""
    return (outputs[:, 0] - targets).square()


def hush(worker_id: int) -> None:
    """Keep a worker whose run was killed from complaining; errors of the data set go another way."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (open as long as the worker lives)


def build(num_workers: int) -> dict[str, Any]:
    """The parts of a run, by name."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    inputs = torch.randn(90, 8)
    clean = TensorDataset(inputs, inputs.sum(1) * torch.rand(90) ** 4)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))
    optimizer = dasgrad.DASGrad(model.parameters(), lr=0.05)
    loader = dasgrad.AdaptiveLoader(
        Augmented(clean),
        BATCH_SIZE,
        scorer=dasgrad.ExampleScorer(model, squared_losses, optimizer),
        refresh=7,
        scoring_dataset=clean,
        num_workers=num_workers,
        worker_init_fn=hush,
    )
    return {"model": model, "optimizer": optimizer, "scheduler": dasgrad.InverseSqrtLR(optimizer), "loader": loader}


def live(folder: Path, num_workers: int, num_steps: int, progress: Progress) -> None:
    """Train from the last checkpoint, if there is one, to the end, and log draws and parameters of every step."""
    torch.set_num_threads(1)
    parts = build(num_workers)
    model, optimizer = parts["model"], parts["optimizer"]
    file, step = folder / "run.pt", 0
    if file.exists():
        step = dasgrad.load_checkpoint(file, **parts)["step"]
    log = os.open(folder / "log.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    while step < num_steps:
        for batch in parts["loader"]:
            optimizer.zero_grad()
            batch.weighted_mean(squared_losses(model(batch.inputs), batch.targets)).backward()
            optimizer.step()
            parts["scheduler"].step()
            step += 1
            params = b"".join(param.detach().numpy().tobytes() for param in model.parameters())
            entry = [step, batch.indices.tolist(), hashlib.sha256(params).hexdigest()]
            os.write(log, json.dumps(entry).encode() + b"\n")
            if step % SAVE_EVERY == 0 or step == num_steps:
                progress.write(step, saving=True)
                dasgrad.save_checkpoint(file, extra={"step": step}, **parts)
            progress.write(step)
            if step == num_steps:
                break


def read_log(folder: Path) -> list[list[Any]]:
    """One entry a step, in the order in which they were made."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def start(*args: Any) -> Any:
    """A life in a process of its own."""
    args[-1].write(-1)
    process = FORK.Process(target=live, args=args)
    process.start()
    return process


def finish(process: Any) -> None:
    """Let a life come to its end."""
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"A life ended with exit code {process.exitcode}.")


def survive(num_kills: int, num_workers: int, folder: Path, seed: int = 0) -> Outcome:
    """Compare a run that is killed ``num_kills`` times with one that is not.

    Raises:
        RuntimeError: when a step's draws or parameters differ, a life fails, or a temporary file is left.
    """
    num_steps = STEPS_PER_KILL * (num_kills + 2)
    build(0)["loader"].refresh()  # what torch imports at first use is imported here, once for all lives
    progress = Progress()
    whole, killed = folder / "whole", folder / "killed"
    whole.mkdir(parents=True)
    killed.mkdir()
    started = time.perf_counter()
    reference = start(whole, num_workers, num_steps, progress)
    wait_for_step(reference, progress, 1)
    start_seconds = time.perf_counter() - started
    finish(reference)
    save_interval_seconds = (time.perf_counter() - started - start_seconds) * SAVE_EVERY / num_steps

    rng = random.Random(seed)
    while_starting = while_saving = 0
    for target in sorted(rng.sample(range(1, num_steps - 2 * STEPS_PER_KILL), num_kills)):
        process = start(killed, num_workers, num_steps, progress)
        if rng.random() < 0.1:
            time.sleep(rng.uniform(0, start_seconds))
        else:
            wait_for_step(process, progress, target)
            time.sleep(rng.uniform(0, save_interval_seconds))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode != -signal.SIGKILL:
            raise RuntimeError(f"A life ended with exit code {process.exitcode} before it was killed.")
        step, saving = progress.read()
        while_starting += step < 0
        while_saving += saving
    finish(start(killed, num_workers, num_steps, progress))

    expected = {entry[0]: entry for entry in read_log(whole)}
    entries = read_log(killed)
    wrong = [entry[0] for entry in entries if entry != expected[entry[0]]]
    if wrong or {entry[0] for entry in entries} != set(range(1, num_steps + 1)):
        raise RuntimeError(f"Steps that differ from the uninterrupted run: {wrong or 'some are missing'}.")
    ends = [build(num_workers) for _ in range(2)]
    for end, place in zip(ends, (whole, killed), strict=True):
        dasgrad.load_checkpoint(place / "run.pt", **end)
    params = [torch.cat([param.detach().flatten() for param in end["model"].parameters()]) for end in ends]
    if not torch.equal(*params):
        raise RuntimeError("The parameters in the last checkpoints differ.")
    if left := [path.name for path in killed.iterdir() if path.name not in ("run.pt", "log.jsonl")]:
        raise RuntimeError(f"Files left behind: {left}.")
    return Outcome(num_steps, num_kills, while_starting, while_saving, len(entries) - num_steps)


def wait_for_step(process: Any, progress: Progress, step: int) -> None:
    """Return as soon as a life has finished a step."""
    while progress.read()[0] < step:
        if not process.is_alive():
            raise RuntimeError(f"A life ended with exit code {process.exitcode} before step {step}.")
        time.sleep(1e-4)


def run() -> list[dict[str, Any]]:
    """One row for each number of workers."""
    rows = []
    for num_workers in (0, 2):
        with tempfile.TemporaryDirectory() as folder:
            outcome = survive(NUM_KILLS, num_workers, Path(folder))
        print(f"{num_workers} workers: {outcome}", file=sys.stderr, flush=True)
        rows.append(
            {
                "metric": f"{num_workers} workers: steps equal after {NUM_KILLS} kills",
                "ours": float(outcome.num_steps),
                "peer": float(outcome.num_steps),
                "peer_name": "uninterrupted",
                "ratio": 1.0,
                "kills_while_saving": outcome.num_kills_while_saving,
                "kills_while_starting": outcome.num_kills_while_starting,
                "repeated_steps": outcome.num_repeated_steps,
            }
        )
    return rows
