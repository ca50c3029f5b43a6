# make build: from a fresh clone to a trained drafter.   make test: every test.   make help: all targets.
SHELL := /bin/bash
# The newest supported Python that starts; name another with `make PYTHON=/path/to/python setup`.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
FIND_PYTHON := for python in python3.13 python3.12 python3.11 python3; do \
  "$$python" -c '$(SUPPORTED)' 2>/dev/null && echo "$$python" && break; done
export PATH := $(CURDIR)/.venv/bin:$(PATH)
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup drivers compose build test check style types every quick bench lock clean

help: ## show this
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

setup: $(READY) drivers ## install missing packages into .venv, and register the merge drivers for dvc.lock

drivers:
	@if git rev-parse --git-dir >/dev/null 2>&1; then \
	  git config merge.aerie-lock.name 'dvc.lock, stage by stage' && \
	  git config merge.aerie-lock.driver 'PYTHONPATH="$(CURDIR)" "$(CURDIR)/.venv/bin/python" -m pipeline.project.versions.merge_driver %O %A %B' && \
	  git config merge.aerie-generated.name 'written by the build: keep ours, dvc repro writes it anew' && \
	  git config merge.aerie-generated.driver true; \
	else echo 'not a git repository: merge drivers not set up; after git init run make setup again'; fi

$(READY): requirements.lock pyproject.toml
	@if ! test -x .venv/bin/python; then \
	  python="$(or $(PYTHON),$$($(FIND_PYTHON)))"; \
	  if ! "$${python:-none}" -c '$(SUPPORTED)' 2>/dev/null; then \
	    echo "error: Aerie needs Python 3.11, 3.12 or 3.13; found $${python:-none of them}." \
	      "Install one, or run: make PYTHON=/path/to/python setup" >&2; exit 2; fi; \
	  echo "$$python -m venv .venv" && "$$python" -m venv .venv; fi
	.venv/bin/pip install --quiet --disable-pip-version-check -r requirements.lock
	touch $@

compose: $(READY) ## refresh build/config.json and build/code.json
	python -m pipeline compose

build: $(READY) ## run the pipeline (dvc repro), then show its results
	dvc repro
	@python -m pipeline status
	@python -m pipeline report

test: $(READY) ## lint, types, every test
	@$(MAKE) --no-print-directory -j style types every

check: $(READY) ## the quick part: lint, types, unit tests
	@$(MAKE) --no-print-directory -j style types quick

style:
	ruff check . && ruff format --check .

types:
	mypy

every:
	python -m pytest -n auto --dist loadfile --no-loadscope-reorder

quick:
	python -m pytest -n auto --dist worksteal -m 'not slow'

bench: $(READY) ## run the benchmarks; results go to benchmarks/results/
	python -m benchmarks

lock: ## pin the newest versions that pyproject.toml admits (in a fresh environment)
	rm -rf .venv.lock && "$(or $(PYTHON),python3.11)" -m venv .venv.lock
	.venv.lock/bin/pip install --quiet '.[dev]'
	{ echo '# Every package of the environment, pinned. Regenerate: make lock'; .venv.lock/bin/pip freeze --exclude aerie | sed 's/+cpu//'; } > requirements.lock
	rm -rf .venv.lock

clean: ## remove the build's outputs (not the ledger of paid responses, not DVC's cache)
	rm -rf build/*/ dvc.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis
