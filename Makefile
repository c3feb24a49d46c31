# Two commands on a fresh machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

BENCHMARKS := bench-convex bench-resnet bench-loop bench-growth bench-tuning bench-optimizer bench-survival bench-deploy bench-threads

.PHONY: demo test lint types unit format docs clean bench bench-versions evidence shape upstream $(BENCHMARKS)

demo: .venv/recipes.installed  ## train on real data, into runs/softmax_regression
	$(BIN)/python recipes/softmax_regression.py

test: lint types unit  ## all that has to hold for a change

lint: .venv/dev.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev.installed
	$(BIN)/mypy

# One process per core, each with one thread; the tests of a file share their fixtures. In their order:
# the long files with few tests would else come last, with one core idle.
unit: .venv/dev.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

format: .venv/dev.installed  ## put the code into the form that `make lint` wants
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev.installed  ## the docstrings as HTML
	$(BIN)/pdoc --docformat numpy --output-directory runs/docs gluon_svrg

bench: $(BENCHMARKS)  ## every comparison, one after the other, into docs/benchmarks.md

bench-versions: .venv/dev.installed  ## this version beside another: OTHER=a checkout of it
	$(BIN)/python benchmarks/versions.py $(OTHER) --out docs/benchmarks.md

shape: .venv/dev.installed  ## the shape of the package, into docs/architecture.md
	$(BIN)/python benchmarks/shape.py --list --out docs/architecture.md

upstream: .venv/dev.installed  ## MXNet's own unit tests with this package's classes: MXNET=a checkout of MXNet 1.9.1
	$(BIN)/python tests/upstream.py $(MXNET)

evidence: .venv/dev.installed  ## what the papers claim, tried: the runs that are missing, then the page
	$(BIN)/python benchmarks/evidence.py run
	$(BIN)/python benchmarks/evidence.py page

# One at a time, whatever -j says: each of them wants all cores.
.NOTPARALLEL:

bench-convex bench-resnet: .venv/peers.installed

$(BENCHMARKS): bench-%: .venv/dev.installed
	$(BIN)/python benchmarks/$*.py --out docs/benchmarks.md

clean:
	rm -rf .venv runs

.venv/bin/python:
	$(PYTHON) -c 'import sys; assert sys.version_info[:2] == (3, 11), "Python 3.11 is needed, found " + sys.version + ": make PYTHON=/path/to/python3.11"'
	$(PYTHON) -m venv .venv

.venv/recipes.installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[recipes]'
	touch $@

.venv/dev.installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[recipes,dev]'
	touch $@ .venv/recipes.installed

# PyTorch and others that the benchmarks compare with: gluoncv does not import beside PyTorch 2.
.venv/peers.installed: .venv/bin/python pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv/peers
	.venv/peers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	touch $@
