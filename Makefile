# make demo | test | check | races | bench | venv: each makes .venv itself. Only python3 and make are needed.
# make bench BENCH='--filter matmul' passes options on; NETCL_BENCH_PYTHON names an interpreter that has torch.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: venv demo test check races bench clean
.DEFAULT_GOAL := venv

# One stamp per set of extras: the demo does not wait for the test tools. A stamp is newer than pyproject.toml or redone.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "netcl needs Python 3.10 or newer; set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "python3 could not make a virtual environment; on Debian or Ubuntu: apt-get install python3-venv"; \
		     rm -rf $(VENV); exit 1; }

$(VENV)/.stamp-cpu: pyproject.toml | $(BIN)/python
	@echo "installing netcl and the CPU driver into $(VENV) ..."
	@$(PIP) install --quiet --editable '.[cpu]'
	@touch $@

$(VENV)/.stamp-test: pyproject.toml | $(BIN)/python
	@echo "installing netcl, the CPU driver and the test tools into $(VENV) ..."
	@$(PIP) install --quiet --editable '.[cpu,test]'
	@touch $@ $(VENV)/.stamp-cpu

venv: $(VENV)/.stamp-test

demo: $(VENV)/.stamp-cpu
	@$(BIN)/netcl train digits

test: $(VENV)/.stamp-test
	@$(BIN)/python -m pytest -n 2

check: $(VENV)/.stamp-test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest tests/test_architecture.py
	@$(BIN)/python tools/loc.py

# Kernels under Oclgrind. Other tests: make races RACES="tests/ops/test_norm.py -k rms"
races: $(VENV)/.stamp-test
	@$(BIN)/python tools/races.py $(RACES)

bench: $(VENV)/.stamp-test
	@$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) .cache build *.egg-info
