# Each target sets up what it needs: a virtual environment in .venv, the pinned requirements, this package.
#   make demo GPU=1          with Paddle's GPU wheel instead of the CPU one; give it each time, or the CPU one comes back
#   make test PYTHON=python3.12
PYTHON ?= python3
VENV ?= .venv
GPU ?=

ifeq ($(filter-out 0,$(GPU)),)
DEVICE := cpu
REQUIREMENTS := requirements.txt
OTHER_PADDLE := paddlepaddle-gpu
else
DEVICE := gpu
REQUIREMENTS := requirements-gpu.txt
OTHER_PADDLE := paddlepaddle
endif

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed-$(DEVICE)
DEVELOPMENT := $(VENV)/.installed-development

.PHONY: help demo demo-compare test test-all lint clean
.DELETE_ON_ERROR:

help:
	@echo "make demo          write a small video data set, train TSM on it, evaluate, predict; ends with a picture"
	@echo "make demo-compare  the same, and the network without temporal shift beside it"
	@echo "make test          lint and the quick tests"
	@echo "make test-all      lint and every test"
	@echo "make lint          ruff: rules and format"
	@echo "make clean         remove caches, builds and the demo's output"
	@echo "GPU=1, given each time, takes Paddle's GPU wheel; PYTHON=... another interpreter"

demo: $(INSTALLED)
	$(RUN) tools/demo.py --output output/demo

demo-compare: $(INSTALLED)
	$(RUN) tools/demo.py --compare --output output/demo

test: lint
	$(RUN) -m pytest -q -m "not slow and not parity"

test-all: lint
	$(RUN) -m pytest -q

lint: $(DEVELOPMENT)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache output/demo
	find . -name __pycache__ -type d -not -path "./$(VENV)/*" -prune -exec rm -rf {} +

# Paddle's CPU and GPU wheels hold the same module: the other one has to go first.
$(INSTALLED): $(REQUIREMENTS) pyproject.toml | $(RUN)
	rm -f $(VENV)/.installed-cpu $(VENV)/.installed-gpu
	@if [ -n "$$($(PIP) freeze | grep -i "^$(OTHER_PADDLE)==")" ]; then $(PIP) uninstall --yes $(OTHER_PADDLE); fi
	@echo "Installing $(REQUIREMENTS) into $(VENV): about 1.5 GB, a few minutes"
	$(PIP) install --quiet -r $(REQUIREMENTS)
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(DEVELOPMENT): requirements-dev.txt $(INSTALLED)
	$(PIP) install --quiet -r requirements-dev.txt
	@touch $@

$(RUN):
	@command -v "$(PYTHON)" > /dev/null || \
	  { echo "'$(PYTHON)' was not found: install Python 3.11 to 3.13, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "$$("$(PYTHON)" --version) is not supported: the requirements have wheels for Python 3.11 to 3.13." \
	    "Name one: make PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2> /dev/null || \
	  { echo "'$(PYTHON)' cannot make virtual environments: install its venv package" \
	    "(on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	"$(PYTHON)" -m venv "$(VENV)" || { rm -rf "$(VENV)"; exit 1; }
