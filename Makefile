# `make demo` and `make test` do all the set-up they need: a virtual environment in .venv, filled
# with the versions of constraints.txt from wherever this machine's pip is set up to install from.
# Both are quick the second time; a changed pyproject.toml or constraints.txt installs anew.

SHELL := /bin/sh
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
ROOMS := broker eventlog leases ops outer sitehub

.PHONY: demo test lint types soak docs site man clean
.DEFAULT_GOAL := test

demo: .venv/.installed-train
	$(BIN)/atoll demo $(ARGS)

test: lint types
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder $(ARGS)

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: .venv/.installed-dev
	$(BIN)/mypy

soak: .venv/.installed-dev
	$(BIN)/python -m pytest -m soak --timeout 3600 $(ARGS)

docs: .venv/.installed-train
	$(BIN)/python -m ops.docs

site: .venv/.installed-dev
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs build/site $(ARGS)
	@echo "build/site/index.html"

man: .venv/.installed-dev
	$(BIN)/python -m ops.manual.pages build/man
	@echo "build/man/atoll.1, and one a command: man -l build/man/atoll.1"

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find $(ROOMS) tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.created: .ci/find-python
	@python="$$(.ci/find-python)" && echo "making .venv with $$python" && "$$python" -m venv .venv
	@touch $@

.venv/.installed-train: .venv/.created pyproject.toml constraints.txt
	@echo "installing into .venv (some minutes the first time: torch is large)"
	@$(PIP) -e '.[train,report]'
	@touch $@

.venv/.installed-dev: .venv/.created pyproject.toml constraints.txt
	@echo "installing into .venv (some minutes the first time: torch is large)"
	@$(PIP) -e '.[train,dev,bench]'
	@touch $@ .venv/.installed-train
