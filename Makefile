# Every target sets up what it needs by itself, once, into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: setup demo quick test test-full test-all slow real-worlds faults mutants check settings format bench zoo docs release clean

setup: $(VENV)/.dev  ## .venv with everything for development

demo: $(VENV)/.core  ## train PPO on CartPole until solved, evaluate it, write a report, show where everything is
	$(BIN)/drl train ppo --env CartPole-v1 --name demo --stop-at-return 475
	@run=$$(ls -td results/demo/*/ | head -1); echo; echo "evaluating the agent on 100 fresh episodes …"; \
	$(BIN)/drl evaluate $$run --episodes 100; \
	echo "  plot    $${run}plots/return.png"; \
	echo "  video   $${run}videos/final_agent.mp4"; \
	echo "  agent   $${run}agent"; \
	page=$$($(BIN)/drl report $$run) && echo "  report  $$page   (open it in a browser)"

quick: $(VENV)/.dev  ## less than a minute: lint, types and tests of the packages that changed
	$(ONE_THREAD) $(BIN)/python .ci/quick.py

test: $(VENV)/.test  ## the default tests: every feature once, at most five minutes on two cores
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2

test-full: $(VENV)/.dev  ## the tests that `make test` leaves out; three workers, since many tests wait
	$(ONE_THREAD) $(BIN)/python -m pytest -n 3 -m 'full and not slow'

test-all: test test-full  ## all tests but those of `make slow`, at most twenty minutes

slow: $(VENV)/.dev  ## tests that prove learning, many minutes
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m slow

real-worlds: $(VENV)/.worlds  ## environments of other packages: one tiny training and evaluation on each
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m 'not slow' tests/real_worlds tests/envs/test_known_ids.py -rs

faults: $(VENV)/.dev  ## every fault of tests/faults, at most an hour; prints a table
	rm -f .faults.jsonl
	DRL_FAULTS=long DRL_FAULTS_RECORD=$(CURDIR)/.faults.jsonl $(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m 'not slow' tests/faults tests/cluster/test_random_kills.py; \
	status=$$?; $(BIN)/python tests/faults/table.py .faults.jsonl; exit $$status

mutants: $(VENV)/.dev  ## bugs put back in on purpose: each must fail a test, nine of ten a default test
	$(ONE_THREAD) $(BIN)/python tests/faults/mutants.py

check: $(VENV)/.dev  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/check_types.py

settings: $(VENV)/.dev  ## drl/core/settings.py, which editors and type checkers read, from the configs
	$(BIN)/python -m drl.cli.settings_text

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench  ## steps per second against Stable-Baselines3, in one run
	$(ONE_THREAD) $(BIN)/python benchmarks/speed_ppo.py

zoo: $(VENV)/.dev  ## docs/zoo.md and docs/by_environment.md from the records of the presets
	$(BIN)/python benchmarks/zoo.py
	$(BIN)/python benchmarks/by_environment.py

docs: $(VENV)/.dev  ## the documentation site into site/; fails at any warning (--quiet would not)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

release: $(VENV)/.dev  ## wheel and source distribution into dist/, checked; the demo from the wheel in an empty environment
	.ci/release

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "drl needs Python 3.11 or newer; run make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

$(VENV)/.test: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) -e '.[test]'
	@touch $@ $(VENV)/.core

$(VENV)/.dev: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.core $(VENV)/.test

$(VENV)/.bench: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) -e '.[bench]'
	@touch $@ $(VENV)/.core

$(VENV)/.worlds: $(VENV)/.dev
	$(PIP) -e '.[highway,minigrid,pettingzoo,robotics]'
	@touch $@

clean:  ## remove .venv and caches; results stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build site *.egg-info
