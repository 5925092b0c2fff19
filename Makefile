# Everything sets itself up: `make quickstart` and `make test` each work alone on a machine with Python >= 3.11 and pip.
PYTHON ?= python3
VENV ?= .venv
# Installed first, as a plain requirement would fetch a CUDA build. For another build: make TORCH="torch==2.9.1 --index-url ..."
TORCH ?= torch==2.13.0
NEWEST_TRL ?= trl>=1.16
PYTEST_ARGS ?=

BIN := $(VENV)/bin
NEWEST := $(VENV)-newest
LAUNCH := $(BIN)/accelerate launch --config_file accelerate_configs/cpu.yaml
# Two OpenMP threads spin on busy cores: small models then decode many times slower.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
OFFLINE := HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 WANDB_MODE=offline

.PHONY: quickstart quickstart-sokoban quickstart-frozenlake quickstart-ppo test test-fast test-newest-trl check format setup clean

quickstart: setup  ## Train the shipped agent on word problems (about three minutes)
	$(OFFLINE) $(LAUNCH) recipes/grpo_metamath.py --config recipes/configs/quickstart_math.yaml

quickstart-sokoban: setup  ## Train the shipped agent on small Sokoban levels
	$(OFFLINE) $(LAUNCH) recipes/grpo_sokoban.py --config recipes/configs/quickstart_sokoban.yaml

quickstart-frozenlake: setup  ## Train the shipped agent on FrozenLake
	$(OFFLINE) $(LAUNCH) recipes/grpo_frozenlake.py --config recipes/configs/quickstart_frozenlake.yaml

quickstart-ppo: setup  ## Train the shipped agent on small Sokoban levels with PPO
	$(OFFLINE) $(LAUNCH) recipes/ppo.py --config recipes/configs/quickstart_ppo.yaml

test: setup  ## All tests
	$(OFFLINE) $(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: setup  ## Tests that take seconds
	$(OFFLINE) $(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-newest-trl: $(NEWEST)/.installed  ## All tests but PPO's on the newest TRL
	$(OFFLINE) $(NEWEST)/bin/python -m pytest $(PYTEST_ARGS)

check: setup  ## Lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, this is {sys.version}")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

$(NEWEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install --quiet $(TORCH)
	$(NEWEST)/bin/pip install --quiet --editable ".[test]" "$(NEWEST_TRL)"
	touch $@

clean:
	rm -rf $(VENV) $(NEWEST) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
