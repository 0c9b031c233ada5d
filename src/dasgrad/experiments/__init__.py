"""Experiments, mostly on real data, that call the public API alone, and the records they leave on disk.

`registry` knows which there are, and each has a module. `methods` are what is compared, `problems` what they are
compared on. `runner` runs an experiment over methods and seeds, with learning rates of `tuning`, in processes of
`workers`. `curves` is a single run, `records` is what it leaves behind, and `statistics` compares them.
"""

from dasgrad.experiments.centroid import CENTROID
from dasgrad.experiments.cifar10 import CIFAR10
from dasgrad.experiments.digits import DIGITS
from dasgrad.experiments.imdb import IMDB
from dasgrad.experiments.mnist import MNIST
from dasgrad.experiments.multitask import MULTITASK
from dasgrad.experiments.registry import EXPERIMENTS, Experiment, Settings, find_experiment
from dasgrad.experiments.shift import SHIFT
from dasgrad.experiments.theory import THEORY

__all__ = [
    "CENTROID",
    "CIFAR10",
    "DIGITS",
    "EXPERIMENTS",
    "IMDB",
    "MNIST",
    "MULTITASK",
    "SHIFT",
    "THEORY",
    "Experiment",
    "Settings",
    "find_experiment",
]
