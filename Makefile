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
# More processes than cores: some tests wait for servers and networks.
TEST_PROCESSES ?= 3
PYTEST := $(BIN)/python -m pytest -q --durations=12 --ignore=tests/nightly
TEST_SHARED := $(PYTEST) -n $(TEST_PROCESSES) --dist loadfile
NOT_HERE := not gpu and not oracle
# What a CPU's instruction set and order of sums could change (docs/decoding.md, "What is exact").
NUMERIC_TESTS := tests/frontend tests/encoder tests/decoding tests/model/nemo/test_importer.py \
	tests/pipeline/test_stages.py tests/scoring/boosting/test_search.py \
	$(addprefix tests/test_recognizer.py::test_,golden_words_of_real_speech golden_encoder_output_of_real_speech)
TEST_NUMERIC := $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) -m "$(NOT_HERE) and not server" $(NUMERIC_TESTS)
# torch runs the instructions it is told to use, present or not; MKL and oneDNN take the best there are below.
AVX512 := $(shell grep -qw avx512vl /proc/cpuinfo && echo avx512 || echo avx2)
# Lock files name everything, with hashes; torch alone comes by its version, in the build that pip's settings offer.
LOCKS := locks
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
PIP_LOCKED := $(PIP_INSTALL) --no-deps --require-hashes
export PIP_CONSTRAINT := $(LOCKS)/pins.txt

.PHONY: setup oracle-setup demo check fix test test-fast test-server test-nightly test-cpus test-kernels test-gpu test-oracle serve benchmark loadtest loadtest-ui capacity soak fault-trials train-demo lock check-targets clean

$(VENV)/.done: pyproject.toml client/pyproject.toml $(LOCKS)/pins.txt $(LOCKS)/dev.txt $(LOCKS)/pytriton.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_LOCKED) -r $(LOCKS)/dev.txt -r $(LOCKS)/pytriton.txt
	$(BIN)/python $(PIP_INSTALL) torch
	$(BIN)/python $(PIP_INSTALL) --no-deps -e . -e client
	touch $@

$(ORACLE_VENV)/.done: pyproject.toml client/pyproject.toml $(LOCKS)/pins.txt $(LOCKS)/oracle.txt
	$(PYTHON) -m venv $(ORACLE_VENV)
	$(ORACLE_VENV)/bin/python $(PIP_LOCKED) -r $(LOCKS)/oracle.txt
	$(ORACLE_VENV)/bin/python $(PIP_INSTALL) torch
	$(ORACLE_VENV)/bin/python $(PIP_INSTALL) --no-deps -e . -e client
	touch $@

$(ORACLE_VENV)/.train: $(ORACLE_VENV)/.done $(LOCKS)/train.txt
	$(ORACLE_VENV)/bin/python $(PIP_LOCKED) -r $(LOCKS)/train.txt
	touch $@

setup: $(VENV)/.done

oracle-setup: $(ORACLE_VENV)/.done

demo: setup
	$(BIN)/python -m scripts.demo --model $(MODEL) --context $(CONTEXT)

check: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/python -m pytest -q tests/nightly/test_words.py

fix: setup
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

# Tests with limits of time come last, one at a time, and whether or not the others pass: one run names all that fails.
test: setup
	$(TEST_SHARED) -m "$(NOT_HERE) and not timing"; shared=$$?; $(PYTEST) -m "$(NOT_HERE) and timing" && exit $$shared

test-fast: setup
	$(TEST_SHARED) -m "$(NOT_HERE) and not server"

test-server: setup
	$(PYTEST) -m "$(NOT_HERE) and server"

# Tests of documents. The long runs of a night are `make fault-trials` and `make soak`.
test-nightly: setup
	$(BIN)/python -m pytest -q tests/nightly

# Three instruction sets, then one that no CPU has.
test-cpus: setup
	ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41 $(TEST_NUMERIC)
	ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 $(TEST_NUMERIC)
	ATEN_CPU_CAPABILITY=$(AVX512) MKL_CBWR=AVX512 ONEDNN_MAX_CPU_ISA=AVX512_CORE $(TEST_NUMERIC)
	$(TEST_NUMERIC) -p tests.helpers.other_cpu

# Triton's interpreter stands in for a GPU; 640 MB more in the environment.
test-kernels: setup
	$(BIN)/python $(PIP_LOCKED) -r $(LOCKS)/kernels.txt
	$(BIN)/python -m pytest -q tests/kernels tests/decoding/test_fused_search.py -m "not gpu"

test-gpu: setup
	$(BIN)/python -m pytest -q -m gpu

test-oracle: oracle-setup
	$(ORACLE_VENV)/bin/python -m pytest -q -m oracle

serve: setup
	$(BIN)/penstock serve --model $(MODEL) --context $(CONTEXT)

benchmark: setup oracle-setup
	$(BIN)/python -m benchmarks.all --oracle-python $(ORACLE_VENV)/bin/python --model $(MODEL) $(BENCHMARK_ARGS)

# Against a server of its own, in real time (docs/load_testing.md).
loadtest: setup
	$(LOADTEST) run --model $(MODEL) --context $(CONTEXT) --streams $(STREAMS) --minutes $(MINUTES) --shape $(SHAPE) $(LOADTEST_ARGS)

loadtest-ui: setup
	$(LOADTEST) ui --model $(MODEL) --context $(CONTEXT) --streams $(STREAMS) --minutes $(MINUTES) --web-host 127.0.0.1 $(LOADTEST_ARGS)

capacity: setup
	$(LOADTEST) capacity --model $(MODEL) --context $(CONTEXT) $(LOADTEST_ARGS)

# An hour by default: memory slope after warm-up, streams lost, chunks late.
soak: MINUTES = 60
soak: setup
	$(LOADTEST).soak --model $(MODEL) --context $(CONTEXT) --streams $(STREAMS) --minutes $(MINUTES) $(LOADTEST_ARGS)

fault-trials: setup
	$(BIN)/python scripts/fault_trials.py --json build/faults/faults.json $(FAULT_ARGS)

# AN4: the release, a folder or an archive; NOISE: manifests of sounds without speech (docs/training.md).
train-demo: $(ORACLE_VENV)/.train
	$(ORACLE_VENV)/bin/python -m recipes.an4.prepare $(AN4) --dev-speakers half --out $(TRAIN_OUT)/data && $(ORACLE_VENV)/bin/python -m recipes.an4.train --train $(TRAIN_OUT)/data/train.jsonl --validation $(TRAIN_OUT)/data/dev.jsonl $(if $(NOISE),--noise $(NOISE)) --out $(TRAIN_OUT) $(TRAIN_ARGS)

# What pyproject.toml asks for, resolved anew: LOCK_ARGS=--upgrade takes newer versions.
lock:
	PYTHON=$(PYTHON) scripts/lock.sh $(LOCK_ARGS)

# Every target in a clean clone: TARGETS names some of them.
check-targets:
	scripts/check_targets.sh $(TARGETS)

clean:
	rm -rf $(VENV) $(ORACLE_VENV) build dist .pytest_cache .ruff_cache .mypy_cache
