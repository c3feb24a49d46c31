# Two commands on a fresh machine with Python 3.10, 3.11, 3.12 or 3.13: `make demo` and `make test`.
# PYTHON=/path/to/python names one; else it is that of .venv, or the first that runs.
ifndef PYTHON
RUNS := -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
PYTHON := $(shell for python in .venv/bin/python python3.11 python3.12 python3.10 python3.13 python3; do \
	if $$python $(RUNS); then echo $$python; exit; fi; done; echo python3)
endif
BIN := .venv/bin
# The tests start Python hundreds of times, and would spend most of their time on compiling MXNet's modules.
unexport PYTHONDONTWRITEBYTECODE

# What matters for another Python or NumPy: the import, the rule against its oracle, the loop, checkpoints, the
# export. `make test-platform` runs these.
PLATFORM_TESTS := tests/test_compat.py tests/test_lazy.py tests/test_oracle.py tests/test_estimator.py tests/arrays \
	tests/checkpoint/test_version_0_8.py tests/deploy/test_export.py tests/reporting/test_history_handler.py \
	tests/linear tests/reporting/test_versions.py

BENCHMARKS := bench-linear bench-large bench-lasso bench-wide bench-softmax bench-convex bench-resnet bench-communication bench-loop bench-growth bench-tuning bench-optimizer bench-survival bench-deploy bench-threads bench-folds bench-sparse bench-finder bench-cluster
# All but `upstream`, which needs other people's checkouts.
PAGES := $(BENCHMARKS) bench-versions bench-constants soak endurance repeatability

.PHONY: FORCE demo quick test test-all full test-platform test-linear test-unpinned lint types format site tutorial wheel gpu-test clean bench bench-versions bench-constants soak fuzz fuzz-linear faults endurance repeatability evidence upstream upstream-sklearn upstream-scripts $(BENCHMARKS)

demo: .venv/recipes.installed  ## train on real data, into runs/softmax_regression
	$(BIN)/python recipes/softmax_regression.py

# One process per core, each with one thread; the tests of a file share their fixtures. In their order:
# the long files with few tests would else come last, with one core idle.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# Of tests with several parameters: pairs of their values, or COVER=all, every combination.
COVER := pairs

quick: lint types  ## after each edit: a few cases of each test that takes a fifth of a second at most
	$(PYTEST) --cover few -m "not slow and not full"

test: lint types  ## what has to hold for a change
	$(PYTEST) --cover $(COVER) -m "not full"

test-all: test full  ## and what takes long

# MARK="full and not long": those that .ci/run has time for.
MARK := full

full: .venv/dev.installed  ## kills, several processes, recipes, the site, the wheel, the other Pythons
	$(PYTEST) --cover $(COVER) -m "$(MARK)"
	.ci/pythons

lint: .venv/dev.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: .venv/dev.installed
	$(BIN)/mypy

# PYTHON=...: any from 3.10 to 3.13; in an environment of its own, .venv/pythons/3.13.
test-platform:  ## the tests that matter for another Python
	$(eval FOLDER := .venv/pythons/$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
	.ci/venv $(PYTHON) $(FOLDER) test
	OMP_NUM_THREADS=1 $(FOLDER)/bin/python -m pytest --cover $(COVER) $(PLATFORM_TESTS)

# PYTHON=...: any from 3.10 to 3.14. Resolved by pip alone, as for a user: NumPy 2, and no MXNet.
test-linear:  ## the tests of the linear models in an environment of their own, in .venv/linear/3.14
	$(eval FOLDER := .venv/linear/$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
	[ -e $(FOLDER)/bin/python ] || $(PYTHON) -m venv $(FOLDER)
	flock pyproject.toml $(FOLDER)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --editable './linear[test]'
	OMP_NUM_THREADS=1 $(FOLDER)/bin/python -m pytest -c linear/pyproject.toml --confcutdir . -n auto --dist loadfile \
		--cover $(COVER) -m "not full" linear/tests

test-unpinned:  ## the same tests at the versions that pip resolves alone, as for a user
	.ci/venv $(PYTHON) .venv/unpinned test /dev/null
	OMP_NUM_THREADS=1 .venv/unpinned/bin/python -m pytest -n auto --dist loadfile --cover $(COVER) -m "not full" $(PLATFORM_TESTS) linear/tests/test_parquet.py tests/deploy/test_images.py

format: .venv/dev.installed  ## put the code into the form that `make lint` wants
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/dev.installed  ## each page of docs/benchmarks that this version has not made, one after the other: hours
	set -e; for target in $$($(BIN)/python benchmarks/pages.py $(PAGES)); do $(MAKE) $$target; done

# 0.8.0. Another one: OTHER=a checkout of it.
PREVIOUS := a711e3c9
OTHER := runs/versions/$(PREVIOUS)

runs/versions/%:
	mkdir -p $@
	git archive $* | tar -x -C $@

bench-versions: .venv/dev.installed $(OTHER)  ## this version beside 0.8.0
	$(BIN)/python benchmarks/versions.py $(OTHER) --out docs/benchmarks/versions.md

bench-constants: .venv/dev.installed  ## each constant of the linear solver, halved and doubled: half an hour
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/linear_constants.py --out docs/benchmarks/constants.md

soak: .venv/dev.installed  ## trainings whose processes and hosts are killed and stopped: the same bits, no process left; continues where it stopped
	$(BIN)/python benchmarks/soak.py --out docs/benchmarks/soak.md

fuzz: .venv/dev.installed  ## damaged models, checkpoints, .npy and Parquet files: no crash, no hang, one sentence each
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/fuzz.py

fuzz-linear: .venv/dev.installed  ## 5,000 random linear problems, each judged by an independent optimum; KIND=l1, huber, disk, hostile
	OMP_NUM_THREADS=1 $(BIN)/python linear/tests/random_problems.py --kind $(or $(KIND),l2)

faults: .venv/dev.installed  ## a full and a broken disk at each call of a run that changes a file: nothing is half-written
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/faults.py

endurance: .venv/dev.installed  ## 32 threads on one Predictor for a minute, 10^5 predictions, 10^6 steps: memory does not grow; into docs/benchmarks
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore benchmarks/endurance.py --out docs/benchmarks/endurance.md

repeatability: .venv/dev.installed  ## every optimizer on a ResNet-20, in seven runs each, bit for bit, into docs/benchmarks
	$(BIN)/python benchmarks/repeatability.py --out docs/benchmarks/repeatability.md

# What is given: MXNET=a checkout of MXNet at 1.9.1, BOOK=of d2l-en at v0.17.5, GLUONCV=of gluon-cv. ONLY=a pattern.
upstream: .venv/dev.installed  ## other people's tests, scripts and chapters, with this package's classes
	$(BIN)/python tests/upstream/run.py $(if $(MXNET),--mxnet $(MXNET)) $(if $(BOOK),--book $(BOOK)) \
		$(if $(GLUONCV),--gluoncv $(GLUONCV)) $(if $(ONLY),--only '$(ONLY)')

upstream-sklearn: .venv/dev.installed  ## scikit-learn's own tests of linear models, with provenglm's classes. ONLY=an expression of pytest's -k
	PYTHONPATH=linear OMP_NUM_THREADS=1 $(BIN)/python tests/upstream/sklearn_tests.py --processes 2 $(if $(ONLY),--only '$(ONLY)')

upstream-scripts: .venv/dev.installed  ## a folder of scripts with scikit-learn's linear models, and with provenglm's. SCRIPTS=the folder
	PYTHONPATH=linear OMP_NUM_THREADS=1 $(BIN)/python tests/upstream/sklearn_scripts.py $(SCRIPTS)

evidence: .venv/dev.installed  ## what the papers claim, tried: the runs that are missing, then the page
	$(BIN)/python benchmarks/evidence.py run
	$(BIN)/python benchmarks/evidence.py page

# One at a time, whatever -j says: each of them wants all cores.
.NOTPARALLEL:

bench-linear bench-large bench-lasso bench-convex bench-resnet bench-communication bench-cluster: .venv/peers.installed

$(filter-out bench-lasso bench-sparse bench-cluster,$(BENCHMARKS)): bench-%: .venv/dev.installed
	$(BIN)/python benchmarks/$*.py --out docs/benchmarks/$*.md

bench-sparse: .venv/dev.installed  # sparse is the name of a package that Dask looks for
	$(BIN)/python benchmarks/row_sparse.py --out docs/benchmarks/sparse.md

bench-cluster:  # in one process with dask-ml
	PYTHONPATH=linear .venv/peers/bin/python benchmarks/cluster.py --out docs/benchmarks/cluster.md

bench-lasso:  # in one process with its peers
	PYTHONPATH=linear .venv/peers/bin/python benchmarks/lasso.py --out docs/benchmarks/lasso.md

clean:
	rm -rf .venv runs

# Runs each time: .ci/venv makes the environment again if it has another Python than PYTHON.
.venv/bin/python: FORCE
	@.ci/venv $(PYTHON) .venv

.venv/recipes.installed: .venv/bin/python pyproject.toml linear/pyproject.toml constraints.txt
	.ci/venv $(PYTHON) .venv recipes

.venv/dev.installed: .venv/bin/python pyproject.toml linear/pyproject.toml constraints.txt
	.ci/venv $(PYTHON) .venv dev
	touch .venv/recipes.installed

# PyTorch and others that the benchmarks compare with: gluoncv does not import beside PyTorch 2.
.venv/peers.installed: .venv/bin/python pyproject.toml linear/pyproject.toml constraints.txt
	.ci/venv $(PYTHON) .venv/peers bench
	touch $@

# What is published: the site, the wheel. And what only a GPU can prove.

site: .venv/site.installed  ## documents, docstrings and pictures as HTML, into runs/site
	$(BIN)/python docs/site/build.py

tutorial: .venv/dev.installed  ## run the notebook of the first hour again
	$(BIN)/python docs/site/tutorial.py

wheel: .venv/dev.installed  ## source distribution and wheel, checked, into dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m build --outdir dist linear
	$(BIN)/python -m twine check --strict dist/*

gpu-test:  ## the tests marked gpu, in an environment with CUDA 11; without a GPU it only says so
	$(PYTHON) tests/gpu/run.py

.venv/site.installed: .venv/dev.installed
	.ci/venv $(PYTHON) .venv site
