# make run: the main job · make quick: the tests of two minutes · make test: every quick test · make test-all: the long ones too · make bench: speed · make docs: the site
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PYTHONSAFEPATH := 1
export OMP_NUM_THREADS ?= 1
# tests start hundreds of processes: without bytecode each of them compiles the suite again
export PYTHONDONTWRITEBYTECODE :=

# the files in which tests are marked; the others are not even read
QUICK = $(shell grep --recursive --files-with-matches --include='test_*.py' 'mark\.quick' tests)

.PHONY: setup run map quick test test-all mutants testbed bench bench-gpu steps rivals outside lint docs matrix grid
setup: $(VENV)/.made

$(VENV)/.made: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --upgrade pip setuptools wheel
	# torch by itself first: its version alone decides which build is taken
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install -qq --constraint constraints.txt --no-build-isolation --editable '.[torch,jax,dev]'
	touch $@

run: setup
	env -u OMP_NUM_THREADS $(BIN)/suite +task=resnet50 optimizer=kfac

# the cheapest sharp tests of every room, which are marked where they stand, in about two minutes
quick: setup
	$(BIN)/ruff check .
	$(BIN)/python -m pytest $(QUICK) -m "quick and not slow" --numprocesses 2 --dist loadgroup $(ARGS)

# jax compiles without most optimizations, which takes two thirds of the time; `make test-all` and `make bench` with them
quick test mutants: export JAX_DISABLE_MOST_OPTIMIZATIONS ?= 1
# a test that waits forever ends its process, which prints where every thread stood; the others go on
test: setup lint
	$(BIN)/python -m pytest tests -m "not slow and not bench" --timeout 900 --timeout-method thread --numprocesses 2 --dist loadgroup $(ARGS)

# each benchmark too, for one round, in which no speed is judged
test-all: setup lint
	BENCH_ONCE=1 $(BIN)/python -m pytest tests --benchmark-disable --numprocesses 2 --dist loadgroup $(ARGS)

# the rooms of the source: files, lines, who imports whom, and what a member consists of
map: setup
	$(BIN)/python tests/rooms.py

# which tests notice each deliberate bug in tests/mutants/*.yaml: hours; interrupt and repeat it as you like
mutants: setup
	$(BIN)/python tests/mutants $(ARGS)

# hosts as network namespaces, with a slow network between them: needs root and iproute2. First what must be right, then
# every mode's bytes, then speed; all of it runs, whatever has failed before
testbed: setup
	failed=0; \
	$(BIN)/python -m pytest tests/testbed -m "testbed and not bench" || failed=1; \
	$(BIN)/python tests/testbed/table.py $(RATE) $(DELAY) || failed=1; \
	$(BIN)/python -m pytest tests/testbed -m "testbed and bench" || failed=1; \
	exit $$failed

bench: setup
	$(BIN)/python -m pytest tests/bench -m bench --benchmark-storage=file://.benchmarks --benchmark-autosave $(BENCH)

# every optimizer's step over SGD's, into results/steps.csv, whatever limits are missed; about a quarter of an hour
steps: setup
	mkdir -p .benchmarks
	$(BIN)/python -m pytest tests/bench/test_step.py tests/bench/test_first_order.py -m bench \
		--benchmark-json=.benchmarks/steps.json; \
	missed=$$?; $(BIN)/python tests/bench/table.py .benchmarks/steps.json results/steps.csv && exit $$missed

# optimizers of other packages beside the suite's own; facebookresearch/optimizers too, if a checkout is on PYTHONPATH
rivals: setup
	$(BIN)/pip install -qq --constraint constraints.txt --no-build-isolation --editable '.[rivals]'
	$(BIN)/python -m pytest tests/bench/test_rivals.py -m bench

# every optimizer of other packages against a loop by hand, into docs/outside.md; about ten minutes
outside: setup
	$(BIN)/pip install -qq --constraint constraints.txt --no-build-isolation --editable '.[outside]'
	$(BIN)/python tests/outside_optimizers.py

# steps and inverse roots on an accelerator; untried where there was none
bench-gpu: setup
	BENCH_DEVICE=cuda $(BIN)/python -m pytest tests/bench/test_step.py tests/bench/test_roots.py -m bench --benchmark-storage=file://.benchmarks --benchmark-autosave $(BENCH)

matrix: setup
	$(BIN)/python tests/pairs.py results/matrix.csv

# every task with at least five tuned optimizers, in both frameworks: hours; interrupt and repeat it as you like
grid: setup
	$(BIN)/python -m suite.studies.grid $(ARGS)

# the documentation as a site, in site/docs
docs: setup
	$(BIN)/pip install -qq --constraint constraints.txt --no-build-isolation --editable '.[docs]'
	$(BIN)/python docs/figures.py
	$(BIN)/sphinx-build -q -W --keep-going docs site/docs

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
