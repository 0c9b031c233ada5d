"""Experiments on real data that call the public API alone, and the records they leave on disk.

`registry` knows which there are, `runner` runs one over methods, learning rates and seeds, `curves` is a
single run, `records` is what a run leaves behind, and `statistics` compares them.
"""

from dasgrad.experiments.digits import DIGITS
from dasgrad.experiments.registry import EXPERIMENTS, Experiment, Settings, find_experiment

__all__ = ["DIGITS", "EXPERIMENTS", "Experiment", "Settings", "find_experiment"]
