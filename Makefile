# Two commands matter: `make demo` and `make test`. Both set up .venv themselves.

PYTHON ?= python3
BIN := .venv/bin
BENCH := .venv-bench/bin
PACKAGE := .venv/.package
INSTALLED := .venv/.installed
PIP := pip install --disable-pip-version-check
BRIDGES := .venv-bridges/bin
# Builds for the CPU: torch's own index has them too, by `make TORCH=... test-bridges`.
TORCH ?= torch==2.13.0

.DEFAULT_GOAL := help
COUNT ?=
MINUTES ?=
SEED ?= 0
.PHONY: help install demo test units slow fuzz soak elastic test-bridges tutorial lint types bench clean

help: ## Show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(INSTALLED) ## Set up .venv with the package and all that developing it needs

# Modules are compiled when they are first imported: a demo imports few of those that JAX needs.
$(PACKAGE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "cereal needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "== Making .venv, a Python environment of its own, with $$($(PYTHON) --version)"
	$(PYTHON) -m venv .venv
	@echo "== Installing cereal, JAX and NumPy into .venv: 0.6 GB, about 20 seconds"
	$(BIN)/$(PIP) --no-compile --editable .
	@touch $@

$(INSTALLED): $(PACKAGE)
	@echo "== Installing what the tests and examples need, too, into .venv: 0.5 GB more, about half a minute"
	$(BIN)/$(PIP) --no-compile --editable '.[dev]'
	@touch $@

demo: $(PACKAGE) ## Train a small classifier on handwritten digits, offline, in half a minute
	@echo "== Training a small network on handwritten digits: examples/digits.py"
	$(BIN)/python examples/digits.py

test: lint ## Lint, types and all tests
	@$(MAKE) --no-print-directory --jobs 2 types units

units: $(INSTALLED) ## All tests but those that take long
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

slow: $(INSTALLED) ## The tests that take long: processes, devices, interrupts, combinations, optimised programs
	CEREAL_TEST_OPTIMIZED=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m 'slow or optimized'

fuzz: $(INSTALLED) ## Random pipelines against a NumPy reference: make fuzz MINUTES=5 SEED=0, or COUNT=1
	$(BIN)/python -m tests.fuzz --seed $(SEED) $(if $(COUNT),--count $(COUNT)) $(if $(MINUTES),--minutes $(MINUTES))

soak: $(INSTALLED) ## Worker processes are killed at random: make soak MINUTES=10
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),10) --seed $(SEED)

elastic: $(INSTALLED) ## One digest for every number of workers, processes and devices, mesh, way to run and restart
	$(BIN)/python benchmarks/digest.py --all
	$(BIN)/python -m benchmarks.digest_hosts --all

test-bridges: .venv-bridges/.installed ## Tests with torch, TensorFlow, Grain, Hugging Face, pandas, Arrow, HDF5, Brax, Minari, flashbax and others, in .venv-bridges
	$(BRIDGES)/python -m pytest --numprocesses 2 --dist worksteal -m bridges tests/bridges

tutorial: .venv-bridges/.installed ## MNIST through cereal and through four other loaders, side by side
	$(BRIDGES)/python examples/tutorial_mnist.py

.venv-bridges/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-bridges
	$(BRIDGES)/pip install --quiet --disable-pip-version-check --editable '.[dev]' '$(TORCH)'
	$(BRIDGES)/pip install --quiet --disable-pip-version-check --editable '.[dev,bridges]' \
		tensorflow-cpu brax craftax jumanji
	$(BRIDGES)/pip install --quiet --disable-pip-version-check --no-deps cyreal==0.2.1 flashbax==0.1.3 loadax==0.2.1
	@touch $@

lint: $(INSTALLED) ## Check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(INSTALLED) ## Check types
	$(BIN)/pyright
	$(BIN)/mypy tests/test_types.py

bench: pyproject.toml ## Print all figures; the peers are installed in .venv-bench
	$(PYTHON) -m venv .venv-bench
	$(BENCH)/pip install --quiet --disable-pip-version-check --editable '.[orbax,rl]' cyreal==0.2.1 pillow
	-$(BENCH)/pip install --quiet --disable-pip-version-check --editable '.[bridges]' spdl
	-$(BENCH)/pip install --quiet --disable-pip-version-check tensorflow-cpu
	-$(BENCH)/pip install --quiet --disable-pip-version-check --no-deps flashbax==0.1.3 loadax==0.2.1
	for script in import_time start_up checkpoint captured functions range_check open_cache gather_rows flip_and_crop in_memory combined windows \
		host_memmap host_small_batches per_element host_photos host_scan processes choosing photos_processes memmap_rate \
		sharded_assembly sharded_programs share_of_bytes mnist rollouts replay replay_exact replay_in_place replay_loop offline \
		convert decode_image tar sqlite stores parquet array_records records huggingface torch_datasets coming_from tutorial; do \
		$(BENCH)/python benchmarks/$$script.py || exit 1; done
	$(BENCH)/pip install --quiet --disable-pip-version-check gymnax==0.0.9  # the last that cyreal unpacks
	$(BENCH)/python benchmarks/rollouts.py --cyreal

clean: ## Remove .venv and caches
	rm -rf .venv .venv-bench .venv-bridges .pytest_cache .mypy_cache .ruff_cache .hypothesis
