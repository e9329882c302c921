# Two commands do everything on a fresh machine:  make demo  and  make test.
# Both work in .venv beside this file, and write to outputs/ and the user's caches.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test lint format generate docs docs-serve clean

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.base: constraints.txt
	@echo "creating $(VENV) and installing PyTorch (a few minutes on a fresh machine)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@touch $@

$(VENV)/.demo: $(VENV)/.base pyproject.toml
	@echo "installing fastvideo with the extra 'demo'"
	@$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base pyproject.toml
	@echo "installing fastvideo with the extra 'dev'"
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ## real clips -> data set -> six DMD2 steps on two ranks, traced; says where to look
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo/demo.sh

# A worker for each core, four at most; ARGS="-n 0" is one process, as is --pdb.
WORKERS := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.dev  ## every test, from nothing; ARGS="tests/profiler -x" for some
	@PATH="$(CURDIR)/$(BIN):$$PATH" OMP_NUM_THREADS=1 python -m pytest $(WORKERS) $(ARGS)

lint: $(VENV)/.dev  ## formatting, style, types, import floors
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.dev  ## format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

generate: $(VENV)/.dev  ## write what is generated from the code: reference pages, dashboards, Kubernetes' rules
	@$(BIN)/python docs/generate.py
	@$(BIN)/python deploy/generate.py

docs: $(VENV)/.dev  ## build the documentation into site/
	@$(PIP) -e '.[docs]'
	@$(BIN)/mkdocs build --strict

docs-serve: docs  ## the documentation at http://127.0.0.1:8000, where alerts' runbooks point
	@$(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

clean:  ## remove what the commands above made, except outputs
	rm -rf $(VENV) site build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
