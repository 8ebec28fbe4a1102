# `make demo` and `make test` each do all the set-up they need. Targets of one line; scripts/ holds what is longer.
PYTHON ?= python3
VENV := .venv
ORACLE_VENV := .venv-oracle
BIN := $(VENV)/bin
MODEL ?= models/an4-rnnt-hybrid
CONTEXT ?= 70,6
AN4 ?= an4
TRAIN_OUT ?= build/train-demo
NOISE ?=
STREAMS ?= 8
MINUTES ?= 2
SHAPE ?= constant
LOADTEST := $(BIN)/python -m loadtest
# What starts servers wants the machine to itself; the rest is shared out, a file at a time, among as many processes.
TEST_PROCESSES ?= 2
PYTEST := $(BIN)/python -m pytest -q --durations=12
TEST_FAST := $(PYTEST) -n $(TEST_PROCESSES) --dist loadfile -m "not gpu and not oracle and not server"
TEST_SERVER := $(PYTEST) -m "server and not gpu and not oracle"
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup oracle-setup demo check fix test test-fast test-server test-kernels test-gpu test-oracle serve benchmark loadtest loadtest-ui capacity soak fault-trials train-demo clean

# torch first and alone, so that a CPU build offered by the local pip configuration is taken; the Triton wheel without
# its Python dependencies, of which the server needs none.
$(VENV)/.done: pyproject.toml client/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) -e '.[server,dev]' -e client
	$(PIP_INSTALL) --no-deps nvidia-pytriton
	touch $@

$(ORACLE_VENV)/.done: constraints.txt
	$(PYTHON) -m venv $(ORACLE_VENV)
	$(ORACLE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(ORACLE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[oracle,dev]' nemo_toolkit==3.0.0
	touch $@

# NeMo needs a newer numpy than constraints.txt has for the server, so only these three are pinned by it.
$(ORACLE_VENV)/.train: $(ORACLE_VENV)/.done
	grep -E '^(matplotlib|pocketsphinx|tqdm)==' constraints.txt | xargs $(ORACLE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[train]'
	touch $@

setup: $(VENV)/.done

oracle-setup: $(ORACLE_VENV)/.done

demo: setup
	$(BIN)/python scripts/demo.py --model $(MODEL) --context $(CONTEXT)

check: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

fix: setup
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

# The second part runs whether or not the first passes: one run names all that fails.
test: setup
	$(TEST_FAST); fast=$$?; $(TEST_SERVER) && exit $$fast

test-fast: setup
	$(TEST_FAST)

test-server: setup
	$(TEST_SERVER)

# The GPU language's interpreter stands in for a GPU; 640 MB more in the environment.
test-kernels: setup
	$(PIP_INSTALL) -e '.[kernels]'
	$(BIN)/python -m pytest -q tests/kernels tests/test_fused_search.py -m "not gpu"

test-gpu:
	$(BIN)/python -m pytest -q -m gpu

test-oracle: oracle-setup
	$(ORACLE_VENV)/bin/python -m pytest -q -m oracle

serve: setup
	$(BIN)/penstock serve --model $(MODEL) --context $(CONTEXT)

benchmark: setup oracle-setup
	$(BIN)/python scripts/benchmark.py --oracle-python $(ORACLE_VENV)/bin/python --model $(MODEL)

# Against a server of its own, in real time (docs/load_testing.md).
loadtest: setup
	$(LOADTEST) run --model $(MODEL) --context $(CONTEXT) --streams $(STREAMS) --minutes $(MINUTES) --shape $(SHAPE) $(LOADTEST_ARGS)

loadtest-ui: setup
	$(LOADTEST) ui --model $(MODEL) --context $(CONTEXT) --streams $(STREAMS) --minutes $(MINUTES) --web-host 127.0.0.1 $(LOADTEST_ARGS)

capacity: setup
	$(LOADTEST) capacity --model $(MODEL) --context $(CONTEXT) $(LOADTEST_ARGS)

# An hour unless told otherwise: memory and descriptors flat, no stream lost?
soak: MINUTES = 60
soak: setup
	$(LOADTEST).soak --model $(MODEL) --context $(CONTEXT) --streams $(STREAMS) --minutes $(MINUTES) $(LOADTEST_ARGS)

fault-trials: setup
	$(BIN)/python scripts/fault_trials.py --json build/faults/faults.json $(FAULT_ARGS)

# AN4: the release, a folder or an archive; NOISE: manifests of sounds without speech (docs/training.md).
train-demo: $(ORACLE_VENV)/.train
	$(ORACLE_VENV)/bin/python scripts/prepare_an4.py $(AN4) --dev-speakers half --out $(TRAIN_OUT)/data && $(ORACLE_VENV)/bin/python scripts/train_demo.py --train $(TRAIN_OUT)/data/train.jsonl --validation $(TRAIN_OUT)/data/dev.jsonl $(if $(NOISE),--noise $(NOISE)) --out $(TRAIN_OUT)

clean:
	rm -rf $(VENV) $(ORACLE_VENV) build dist .pytest_cache .ruff_cache .mypy_cache
