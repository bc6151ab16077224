# What developers and CI run. Everything happens in .venv; nothing is installed twice.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Two more than there are cores: a quarter of the time of tests is spent waiting, for disks, servers, processes.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 2)
# Tests wait for thousands of syncs: they lie in memory where that has 8 GiB to spare. TEST_FOLDER=/tmp lets them lie on a disk.
TEST_FOLDER ?= $(shell df --output=avail -B1M /dev/shm 2>/dev/null | awk -v free="$$(awk '/^MemAvailable/ {print int($$2 / 1024)}' /proc/meminfo)" \
  'END {if ($$1 + 0 >= 8192 && free + 0 >= 8192) print "/dev/shm"}')
STORE  ?= local
export STORE
# Tests start hundreds of processes; without this each would compile all our modules again.
unexport PYTHONDONTWRITEBYTECODE

PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install -qq --progress-bar off --no-compile
KERNELS := $(wildcard formats/native/*.[ch] repo/*/*.c)
SOURCES := repo formats query migrations api tensorrepo tests benchmarks examples docs/conf.py

.PHONY: help demo test test-gpu lint check-code format typecheck reference docs check-docs bench bench-all bench-env soak dev clean
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

# A stamp is made last, so that an interrupted installation is done again.
$(VENV)/.made: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "tensorrepo needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	       "Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "no virtual environment could be made; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PIP) -c constraints.txt pip setuptools wheel
	@touch $@

# The demo needs less than the tests, and a visitor's patience is short: two stamps.
$(VENV)/.demo: $(VENV)/.made pyproject.toml $(KERNELS)
	@echo "installing tensorrepo and what the demo needs into $(VENV) (once, about a minute)"
	$(PIP) --no-build-isolation -c constraints.txt -e '.[torch,images,demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml $(KERNELS)
	@echo "installing tensorrepo and what its tests need into $(VENV) (once, a few minutes)"
	$(PIP) --no-build-isolation -c constraints.txt -e '.[torch,jax,images,plots,postgres,sql,hdf5,lance,lmdb,tfrecord,server,keyring,mount,demo,test,lint,docs]'
# pip would compile all modules one after another; others' tests and most of transformers' models nobody imports.
	@$(BIN)/python -m compileall -qq -j 0 -x '/(tests?|transformers/models)/' $(VENV)/lib || true # not all are for this version
	@touch $@ $(VENV)/.demo

dev: $(VENV)/.dev ## make .venv with everything that tests, linters and docs need

demo: $(VENV)/$(if $(filter s3,$(STORE)),.dev,.demo) ## run the story of README.md on real data; STORE=s3 does it on a local S3 server
	$(BIN)/python examples/demo.py

# pytest's closing line comes last, for whoever runs this judges it by that; unless types or documentation
# are wrong, then they do. mypy and Sphinx each keep one core busy for up to a minute: they check beside the tests.
test: $(VENV)/.dev ## lint, types, strict docs, tests in the profile dev; the slowest go to build/durations.txt
	@mkdir -p build
	@$(MAKE) check-code
	@$(MAKE) check-docs >build/check-docs.txt 2>&1 & docs=$$!; $(MAKE) typecheck >build/typecheck.txt 2>&1 & types=$$!; \
	trap 'kill $$docs $$types 2>/dev/null || true' EXIT; \
	echo "Sphinx and mypy check documentation and types beside the tests, into build/check-docs.txt and build/typecheck.txt"; \
	$(if $(TEST_FOLDER),PYTEST_DEBUG_TEMPROOT=$(TEST_FOLDER)) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --merge-cases --slowest=build/durations.txt $(PYTEST_ARGS) || failed=$$?; \
	wait $$docs || { cat build/check-docs.txt; failed=1; }; \
	wait $$types || { cat build/typecheck.txt; failed=1; }; exit $${failed:-0}

test-gpu: $(VENV)/.dev ## what needs a GPU that torch can use: tests/gpu
	$(BIN)/python -m pytest -m gpu tests/gpu $(PYTEST_ARGS)

lint: check-code ## ruff, rules and format; figures of the architecture
	$(BIN)/python .ci/house

# Without the figures, which only tell: tests/architecture holds them, by the same parsed modules.
check-code: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: $(VENV)/.dev ## let ruff format the code and fix what it can
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

typecheck: $(VENV)/.dev ## mypy, strict, over the package as it is installed
	PYTHON=$(CURDIR)/$(BIN)/python .ci/typecheck

reference: $(VENV)/.dev ## make docs/reference/rest.md of the routes of the service
	$(BIN)/python -c 'from pathlib import Path; from tensorrepo.api.reference import write_reference; write_reference(Path("docs/reference/rest.md"))'

# A link to nothing or a name that is not there is found without writing pages, which takes three quarters of `docs`, and
# without looking for quotation marks, a tenth of what is left, and for garbage, a third: 421 MB instead of 289.
check-docs: $(VENV)/.dev ## read all documentation and follow its links; a warning is an error
	$(BIN)/python -c 'import gc, sys; gc.disable(); from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))' \
	  -E -W --keep-going --quiet -D smartquotes=0 -b dummy docs docs/_build/dummy

docs: $(VENV)/.dev ## build docs/_build/html afresh; a warning is an error
	$(BIN)/python -m sphinx -E -W --keep-going --quiet -b html docs docs/_build/html

bench: $(VENV)/.dev ## measure; BENCH=benchmarks/bench_core.py runs one file
	@set -e; for bench in $(or $(BENCH),$(wildcard benchmarks/bench_*.py)); do \
	  echo "== $$bench"; $(BIN)/python $$bench $(BENCH_ARGS); done

# Hours; on a quiet machine. Stopped, it goes on where it was when it is called again.
bench-all: $(VENV)/.dev .bench/.made ## measure everything anew into benchmarks/results/figures; resumable; BENCH_ARGS="CASE ..."
	$(BIN)/python benchmarks/everything.py --peers .bench/bin/python $(BENCH_ARGS)

# What the benchmarks compare with stays apart from the project's own environment.
.bench/.made: benchmarks/peers.txt
	$(PYTHON) -m venv .bench
	.bench/bin/python -m pip --disable-pip-version-check --no-input install -qq --progress-bar off -r $<
	@touch $@

bench-env: .bench/.made ## make .bench with what benchmarks compare with: BENCH_ARGS="--peers .bench/bin/python"

# The same tests and more: 500 examples instead of 10, every seed, crash point and byte instead of a
# sample, packages that are built, whole trainings. Takes hours.
soak: $(VENV)/.dev ## every test, in the profile soak: many examples, all cases, big ingests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "" --hypothesis-profile soak --timeout 7200 $(PYTEST_ARGS)

clean: ## remove what was made here, .venv too
	rm -rf $(VENV) .bench .demo build dist docs/_build *.egg-info formats/native/*.so repo/*/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
