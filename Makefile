# make setup | demo | test | test-all | check | docs | dist | bench | faults | fuzz | mutants | capacity | soak | deploy-local
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MINUTES ?= 60

.DEFAULT_GOAL := help
.PHONY: help older-spark setup setup-node demo deploy-local test test-all check docs bench faults fuzz mutants capacity soak audit lint style templates dist lock clean

help:  ## Show these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.installed  ## Make .venv: sqsdelay editable, and all that demo and tests need

# Compiled below, by as many processes as there are cores: pip has one for 360 MB of modules.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
count = $$(grep -c '^[a-z].*==' $(1))

# What the demo needs is a tenth of the packages: it is there before anybody loses patience.
$(VENV)/.demo: requirements-demo.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(f"Python {sys.version.split()[0]} found, 3.11 or newer is needed: make PYTHON=python3.11 …" if sys.version_info < (3, 11) else 0)'
	@echo "1/3 making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "2/3 installing $(call count,requirements-demo.txt) packages for the demo"
	@$(PIP) --require-hashes -r requirements-demo.txt
	@echo "3/3 installing sqsdelay"
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.installed: $(VENV)/.demo requirements.txt pyproject.toml
	@echo "installing $(call count,requirements.txt) packages for tests, CDK, Spark and documentation (minutes)"
	@$(PIP) --require-hashes -r requirements.txt
	@$(BIN)/python -W ignore -m compileall -q -j 0 $(VENV)/lib > /dev/null || true  # templates are no Python
	@touch $@

setup-node: node_modules/.installed  ## The CDK's command line, pinned, in node_modules (needs Node)

node_modules/.installed: package-lock.json
	@command -v npm > /dev/null || { echo "npm not found: install Node 20.11 or newer"; exit 1; }
	npm ci --silent --no-audit --no-fund --ignore-scripts
	touch $@

demo: $(VENV)/.demo  ## Send delayed messages through a local AWS and watch them arrive
	$(BIN)/sqsdelay demo

deploy-local: setup setup-node  ## cdk deploy to a local AWS and leave it running to try
	$(BIN)/python -m infra.local

test:  ## Lint, types, tests: a case of each kind (SEED=7: in another order)
	+@$(MAKE) --no-print-directory test-all OLDER=build/pyspark-3.5/.installed ONLY="-m 'not nightly'"

OLDER := older-spark

test-all:  ## The same with every test: older Sparks, other languages, all faults
	@# Side by side, for pip fetches and unpacks one package after the other, mypy is one process, and tests wait.
	+@$(MAKE) --no-print-directory --jobs 4 setup setup-node $(OLDER)
	+@$(MAKE) --no-print-directory style
	@# mypy's findings come last, or they would stand far above the tests' own.
	@# Where CI is set, pytest's closing list has whole messages: the names of what failed get lost in them.
	@# Six processes, also on two cores: acceptance tests wait more than they compute.
	@# Compiled modules are kept, or each of a thousand Python processes would compile its own.
	@mkdir -p build; $(BIN)/mypy > build/types.log 2>&1 & types=$$!; failed=0; \
	  env -u CI -u BUILD_NUMBER -u MAKEFLAGS -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --numprocesses 6 --dist loadfile --no-loadscope-reorder $(ONLY) $(if $(SEED),--seed $(SEED)) || failed=$$?; \
	  wait $$types || failed=$$?; cat build/types.log; exit $$failed

check: setup lint docs  ## Fast: lint, types, documentation, unit tests
	$(BIN)/pytest tests/unit

docs: setup  ## Build the documentation site; a broken link fails it
	@# The variable silences the theme's advertisement of a future MkDocs.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "the documentation: build/site/index.html"
	@echo "with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

bench: setup  ## Accuracy over a virtual year; throughput; stores; RabbitMQ; what delays cost (about 12 minutes)
	$(BIN)/python -m benchmarks.accuracy
	$(BIN)/python -m benchmarks.throughput
	$(BIN)/python -m benchmarks.async_send
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.dynamodb_dispatchers
	$(BIN)/python -m benchmarks.rabbitmq
	$(BIN)/python -m benchmarks.cost_by_delay
	$(BIN)/python -m benchmarks.ledger
	$(BIN)/python -m benchmarks.spark

faults: setup  ## Break the relay on purpose, count every message, rewrite docs/reliability.md's table
	$(BIN)/python -m tests.simulation.table

FUZZ_SECONDS ?= 60

fuzz: setup  ## Look for new hostile input, FUZZ_SECONDS (60) for each target; what is new joins the corpus
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r tests/fuzz/requirements.txt
	$(BIN)/python -m tests.fuzz $(FUZZ_SECONDS)

MODULES ?=

mutants: setup  ## Try 25 changes of each module (MUTANTS=0: all; MODULES="delay relaying" only): fails where 8 % or more go unnoticed
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r tests/mutants/requirements.txt
	$(BIN)/python -m tests.mutants $(MODULES)

capacity: setup  ## Reckon how much one endpoint holds, rewrite docs/capacity.md's tables
	$(BIN)/python -m benchmarks.capacity

soak: setup  ## A worker under steady load for an hour (MINUTES=10): flat memory and sockets, or it fails
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

audit:  ## Known vulnerabilities in the locked dependencies (asks PyPI and npm; not part of test)
	$(PYTHON) -m venv build/audit
	build/audit/bin/pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	build/audit/bin/pip-audit --strict --disable-pip --require-hashes -r requirements.txt -r lambdas/requirements.txt
	npm audit --package-lock-only

lint: style
	$(BIN)/mypy

style: setup
	$(BIN)/ruff check --output-format concise .
	$(BIN)/ruff format --check .

older-spark: build/pyspark-3.5/.installed build/pyspark-4.0/.installed  ## The Sparks that AWS runs, for their tests

build/pyspark-3.5/.installed: PACKAGES := pyspark==3.5.6 py4j==0.10.9.7
build/pyspark-4.0/.installed: PACKAGES := pyspark==4.0.1 py4j==0.10.9.9
build/pyspark-%/.installed: | $(VENV)/.demo
	$(PIP) --no-deps --upgrade --target $(@D) $(PACKAGES) pandas==2.3.3 pytz
	touch $@

templates: setup  ## The CloudFormation templates and the functions' archive, in build/release
	$(BIN)/python -m infra.templates

dist: setup templates  ## Wheel and sdist in dist/, with the functions' archive, checked as PyPI checks them
	$(PYTHON) -m venv build/packaging
	build/packaging/bin/pip install --quiet --disable-pip-version-check build==1.3.0 'setuptools>=77' twine==6.2.0
	rm -rf dist build/lib
	build/packaging/bin/python -m build --no-isolation --sdist --wheel
	build/packaging/bin/twine check --strict dist/*

lock:  ## Renew requirements.txt and what is taken from it for demo and functions (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes \
	  --no-emit-package sqsdelay --output-file requirements.txt pyproject.toml
	echo 'setuptools>=77' | uv pip compile --quiet --universal --python-version 3.11 --extra demo --extra console --generate-hashes \
	  --no-emit-package sqsdelay --constraint requirements.txt --output-file requirements-demo.txt pyproject.toml -
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --constraint requirements.txt --output-file lambdas/requirements.txt lambdas/requirements.in

clean:  ## Remove what setup and tests made
	rm -rf $(VENV) node_modules cdk.out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis mutants
