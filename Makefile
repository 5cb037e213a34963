# Everything here sets up what it needs in .venv; there is no earlier step.
#   make run      the main job: real flights through the broker into Spark, with two kills, reconciled
#   make quick    what an edit needs, in less than a minute: lint, and the tests that are both quick and telling
#   make test     all that a change must pass: lint, types, layers, tests interpreted and compiled, Spark; some of it: CHECKS="lint spark"
#   make coverage what the tests reach, run interpreted: a report and pages in build/coverage/html, no check
#   make bench    measure this machine, and how long one peer can hold up all others
#   make torture  kill the broker under load 1,000 times (1 h), and check what it promised
#   make fuzz     hostile input, with sanitizers: bytes guided by coverage, then sessions of several connections; SECONDS=60 for each
#   make sim      the simulation: power cuts, torn writes, errors, full disks; one run again: make sim SEED=n KIND=power
#   make compat   other projects' test suites against Kvitto, all of them
#   make audit    look over the dependencies: the lock, and known vulnerabilities where they can be asked for
#   make docs     look for links in the documents that lead nowhere, and for targets that are named there and not here
#   make wheel    a wheel for this machine, in dist/, installed without a compiler and tried
#   make sdist    the source distribution, in dist/; with TAG=v1.2.3 it must be of that version
#   make build    compile the data plane;  make lint, make format, make lock, make clean: what they say
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help run quick test coverage bench torture compat fuzz sim audit build lint docs format lock sdist wheel clean prerequisites

help:
	@sed -n 's/^#   //p' Makefile

prerequisites:
	@sh scripts/check-prerequisites python compiler java

$(VENV)/installed: requirements.lock pyproject.toml setup.py scripts/install | prerequisites
	sh scripts/install $(VENV)

build: prerequisites $(VENV)/installed
	$(BIN)/python scripts/build

run: build
	$(BIN)/python -m examples.flights

# interpreted, as an edit makes it: nothing is compiled
quick: $(VENV)/installed
	$(BIN)/python scripts/test lint quick

test: build
	$(BIN)/python scripts/test $(CHECKS)

# not compiled: a line of C cannot be told from its neighbours
coverage: $(VENV)/installed
	$(BIN)/python scripts/test coverage

bench: build
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.spark
	$(BIN)/python -m benchmarks.stalls

fuzz: build
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)
	$(BIN)/python -m tests.fuzz.sessions --seconds $(or $(SECONDS),60)

torture: build
	$(BIN)/kvitto torture --cycles 1000

sim: build
	$(BIN)/python -m tests.sim --jobs $(JOBS) $(if $(SEED),--seed $(SEED)) $(if $(STATES),--states $(STATES)) $(if $(KIND),--kind $(KIND))

compat: build
	$(BIN)/python -m tests.compat

audit: $(VENV)/installed
	$(BIN)/python scripts/audit

lint: $(VENV)/installed
	$(BIN)/python scripts/test lint

docs: $(VENV)/installed
	$(BIN)/python scripts/test docs

format: $(VENV)/installed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# needs uv (pip install uv); the lock names versions and hashes, never where they come from
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url --extra dev pyproject.toml --output-file requirements.lock

sdist: $(VENV)/installed
	$(BIN)/python -c "from setuptools.build_meta import build_sdist; print('dist/' + build_sdist('dist'))"
	@[ -z '$(TAG)' ] || [ -f 'dist/kvitto-$(TAG:v%=%).tar.gz' ] || { echo 'the version is not that of the tag $(TAG)' >&2; exit 1; }

wheel: prerequisites $(VENV)/installed
	$(BIN)/python scripts/wheel

clean:
	rm -rf build dist run .mypy_cache .ruff_cache .pytest_cache .hypothesis
