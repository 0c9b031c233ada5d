"""Types of arguments on the command line, refused with range and value, and what has to be installed."""

import argparse
import importlib.util
from collections.abc import Callable, Sequence

import torch

from dasgrad.experiments.registry import Experiment, find_experiment

INSTALL = 'pip install "dasgrad[experiments]"'


def missing_extras(names: Sequence[str]) -> list[str]:
    """Those of some packages that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """An integer in a range."""
    allowed = f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"must be {allowed}, got {text!r}")
        return value

    return parse


def experiment(text: str) -> Experiment:
    """An experiment by its name; the error lists those there are."""
    try:
        return find_experiment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def device(text: str) -> str:
    """``cpu``, or ``cuda`` where there is one."""
    if text not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"must be cpu or cuda, got {text!r}")
    if text == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"torch {torch.__version__} finds no CUDA device here, got 'cuda'; use cpu")
    return text
