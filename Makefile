# make demo    train the digits in float32 and in mixed precision, and compare
# make test    the test suite, but for tests that repeat a law for further models
# make test-all  all of it
# make test-quick  the tests that take a moment: not those marked slow or processes
# make test-isa  the tests that depend on kernels, on older CPUs that this one can stand for
# make test-gpu-kernels  whether GPUs have the kernels that plans for them need; no GPU
#                needed, but the large TensorFlow that is built for them
# make bench   time whole training steps, against the neighbours; see BENCH below
# make convergence  train every model family in float32 and in mixed precision, quickly;
#                needs PYTHON=python3.11, under which convergence/margins.json was frozen
# make docs    the site of docs/, in build/site; a warning is an error
# make types   whether the types are right
# make check   format, lint, types, docs, tests: all that .ci/run asks
# make vendor  fetch the graph libraries of the report page, which are checked in; needs npm
# make clean   remove what the above made
#
# Each makes a virtual environment in .venv if needed.
#   PYTHON=python3.12              the Python to make it with, 3.10 or newer
#   EXTRAS=tensorflow,demo,convergence,dev,docs  another TensorFlow than the one for CPUs;
#                                  gpu in its place brings CUDA too
#   WORKERS=4                      processes that test side by side; as many as cores, up to 8
#   BENCH="--models mlp resnet50"  options of benchmarks/training_step.py; --help tells
#   BENCH="--memory --force"       replace the results of this machine, which are kept else
#   CONVERGENCE="resnet --quick --resume"  options of `python -m convergence run`
#   CALIBRATION="resnet --quick"   likewise of `calibrate`, for margins not frozen yet

PYTHON ?= python3
EXTRAS ?= cpu,demo,convergence,dev,docs
BENCH ?= --memory
CONVERGENCE ?= all --quick
CALIBRATION ?= all --quick
WORKERS ?= auto
VENV := .venv
BIN := $(VENV)/bin
# Which TensorFlow, and which is not to be there beside it: they share a directory.
COMMA := ,
TENSORFLOW := $(or $(firstword $(filter gpu tensorflow,$(subst $(COMMA), ,$(EXTRAS)))),cpu)
OTHER := $(if $(filter cpu,$(TENSORFLOW)),tensorflow,tensorflow-cpu)
# What the demo needs of EXTRAS, so that a fresh machine shows it sooner.
DEMO_EXTRAS := $(TENSORFLOW),demo
# Their names tell what is installed, so that other EXTRAS are installed when asked for.
STAMP := $(VENV)/.installed-$(subst $() ,,$(EXTRAS))
DEMO_STAMP := $(VENV)/.installed-demo-$(TENSORFLOW)
# The demo's, where EXTRAS have what it needs: the images are scikit-learn's.
WITH_DEMO := $(if $(findstring demo,$(EXTRAS))$(findstring convergence,$(EXTRAS)),$(DEMO_STAMP))
INSTALL := -m pip install --disable-pip-version-check --no-compile
# Keras 2, for tests; alone, because it asks for the TensorFlow that is not to be there.
TF_KERAS := $(if $(findstring dev,$(EXTRAS)),$(BIN)/python $(INSTALL) --no-deps tf-keras)

# Each process imports TensorFlow once; one that is done takes over what another still has.
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 8 --dist worksteal
# Up to which instruction set oneDNN goes: what this CPU lacks it cannot stand for. Nor can
# one with AVX-512 stand for one without: TensorFlow asks the CPU, not oneDNN, whether it
# has kernels for bfloat16, and a product then ends the process (seen in 2.21).
ISAS := $(if $(shell grep -m1 -w avx512f /proc/cpuinfo),AVX512_CORE,AVX2) \
    $(if $(shell grep -m1 -w avx512_bf16 /proc/cpuinfo),AVX512_CORE_BF16) \
    $(if $(shell grep -m1 -w amx_bf16 /proc/cpuinfo),AVX512_CORE_AMX)

export TF_CPP_MIN_LOG_LEVEL ?= 2
# Bytecode is written at first import (an empty value means yes), because pip compiling
# all of TensorFlow takes longer than the modules that are used.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-quick test-isa test-gpu-kernels bench convergence docs types check vendor clean
.PHONY: $(VENV)/.installed

demo: $(DEMO_STAMP)
	$(BIN)/python -m examples.demo

test: $(STAMP)
	$(PYTEST) -m "not thorough"

test-all: $(STAMP)
	$(PYTEST)

test-quick: $(STAMP)
	$(PYTEST) -m "not slow and not processes and not thorough"

# Each of them once, so that one failing does not hide the next.
test-isa: $(STAMP)
	@failed=; \
	for isa in $(ISAS); do \
	    echo "oneDNN up to $$isa"; \
	    ONEDNN_MAX_CPU_ISA=$$isa $(PYTEST) -m kernels || failed="$$failed $$isa"; \
	done; \
	for types in hidden shown; do \
	    echo "the CPU's 16-bit types $$types"; \
	    $(PYTEST) -m kernels --sixteen-bit $$types || failed="$$failed $$types"; \
	done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# The registry of a TensorFlow that is built for GPUs tells, in an environment of its own.
test-gpu-kernels:
	$(MAKE) VENV=.venv-gpu EXTRAS=tensorflow,convergence,dev .venv-gpu/.installed
	.venv-gpu/bin/python -m pytest -q -m gpu_kernels tests/graph_rewrite

bench: $(STAMP)
	$(BIN)/python -m benchmarks.training_step $(BENCH)

# The report is written of a failing run too, and the failure is what `make` ends with.
# Under another Python than 3.11 `calibrate` and `run` refuse, and nothing is overwritten:
# margins are frozen under it (FROZEN_BY in convergence/__main__.py).
convergence: $(STAMP)
	$(BIN)/python -m convergence calibrate $(CALIBRATION) --resume
	$(BIN)/python -m convergence run $(CONVERGENCE); status=$$?; \
	$(BIN)/python -m convergence report && exit $$status

# From nothing each time, so that no page of before hides a warning.
docs: $(STAMP)
	$(BIN)/python -m sphinx -b html -E -q -W --keep-going -d build/doctrees docs build/site
	@echo "build/site/index.html"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) -j 2 types docs
	$(MAKE) test

types: $(STAMP)
	$(BIN)/mypy

vendor:
	sh amp/report_page/assets/vendor/fetch.sh

clean:
	rm -rf build dist $(VENV) .venv-gpu *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed again when the packaging changes. The stamp comes last, and those of before go
# first: an interrupted installation is taken up again.
$(STAMP): pyproject.toml setup.py tf_amp.pth
	$(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/.installed*
	$(BIN)/python -m pip uninstall -q -y $(OTHER)
	$(BIN)/python $(INSTALL) -e '.[$(EXTRAS)]'
	$(TF_KERAS)
	touch $(WITH_DEMO) $@

$(DEMO_STAMP): pyproject.toml setup.py tf_amp.pth
	@echo "installing TensorFlow and scikit-learn into $(VENV) ..."
	$(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/.installed*
	$(BIN)/python -m pip uninstall -q -y $(OTHER)
	$(BIN)/python $(INSTALL) -q -e '.[$(DEMO_EXTRAS)]'
	touch $@

# Whatever EXTRAS are.
$(VENV)/.installed: $(STAMP)
