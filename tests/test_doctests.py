"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import importlib.util
import pkgutil

import pytest

import dasgrad

SKIPPED = ("dasgrad.cli", "dasgrad.experiments", "dasgrad.report", "dasgrad.__main__")
if importlib.util.find_spec("triton") is None:  # torch for CPUs comes without it
    SKIPPED += ("dasgrad.scoring.triton_kernels",)
FOUND = (module.name for module in pkgutil.walk_packages(dasgrad.__path__, "dasgrad.", onerror=lambda name: None))
MODULES = ["dasgrad", *(name for name in FOUND if not name.startswith(SKIPPED))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(
    "name",
    ["moments", "optim.dasgrad", "sampling.segment_tree", "sampling.sparse_rows", "scoring.scorer", "targets"],
)
def test_the_main_modules_have_examples(name):
    assert doctest.testmod(importlib.import_module(f"dasgrad.{name}")).attempted > 0
