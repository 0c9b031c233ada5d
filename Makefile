# Everything is set up on first use: `make reproduce` and `make test` need only Python, pip and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS  := $(VENV)/.peers-installed
BENCHMARKS ?= tree step loop scores tiers

.PHONY: help setup reproduce bench test wheel-test lint format clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard src/dasgrad/*/native/*.cpp src/dasgrad/*/native/*.h)
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "dasgrad needs Python 3.11 or newer; call make with PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,experiments]'
	@touch $(STAMP)

setup: $(STAMP)  ## make the virtual environment in .venv

reproduce: $(STAMP)  ## DASGrad against Adam and AMSGrad on the embedded digits data, with figure and table
	$(BIN)/dasgrad run digits --out runs

$(PEERS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps backpack-for-pytorch
	@touch $(PEERS)

bench: $(PEERS)  ## time against the peers (BENCHMARKS="tree step loop scores tiers"), into benchmarks/results and runs/bench
	@set -e; for name in $(BENCHMARKS); do \
		$(BIN)/python -m benchmarks $$name --json runs/bench/$$name.json --md benchmarks/results/$$name.md; done

test: $(STAMP)  ## run the test suite
	$(BIN)/python -m pytest -n auto

wheel-test: $(STAMP)  ## run the tests against wheels built with and without a compiler; takes some minutes
	$(BIN)/python -m benchmarks wheel

lint: $(STAMP)  ## ruff and a strict type check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and what the tools leave behind
	rm -rf $(VENV) build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
