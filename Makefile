# The two commands: `make demo` and `make test`. Each sets up all it needs; Python 3.11+ and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The torch the tests are run with; rankbind itself takes any (extra `torch`).
TORCH := torch==2.13.0

.PHONY: demo test chaos e2e parsers lint setup environments benchmark docs clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: $(VENV)/.test environments
	$(BIN)/python -m pytest $(ARGS)

# RANKBIND_CHAOS=10 make chaos: ten times as long.
chaos: $(VENV)/.test
	$(BIN)/python -m pytest tests/chaos -m chaos -n 0 -s $(ARGS)

e2e: $(VENV)/.test environments
	$(BIN)/python -m pytest tests/e2e -m e2e -n 0 $(ARGS)

# The engines' own parsers, of every release that can be had (a few hundred MB).
parsers: $(VENV)/.test environments
	$(BIN)/python integrations/sglang/tools/options.py --fetch
	$(BIN)/python integrations/vllm/tools/options.py --fetch
	$(BIN)/python -m pytest tests/integrations -m parsers $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(VENV)/.test

environments: $(VENV)/.test
	$(BIN)/python tests/e2e/environments.py

benchmark: $(VENV)/.test environments
	$(BIN)/python benchmarks/per_call.py
	$(BIN)/python benchmarks/claims.py
	$(BIN)/python benchmarks/status.py
	$(BIN)/python benchmarks/launch.py
	$(BIN)/python benchmarks/audit.py

docs: $(VENV)/.test
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	$(BIN)/mkdocs build --strict

$(VENV)/.demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e . -e integrations/sglang -e integrations/vllm
	touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.demo
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet -e '.[test]' -e integrations/sglang -e integrations/vllm
	touch $@

clean:
	rm -rf $(VENV) .venv-sglang .venv-vllm dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
