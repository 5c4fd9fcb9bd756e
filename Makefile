# Everything installs into .venv of this folder; delete it, or `make clean`, to begin anew.

PYTHON ?= $(firstword $(shell for name in python3.11 python3.12 python3.13 python3; do command -v $$name; done))
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
PROTOS := .venv-protos
# As many as the cores of a small machine; tests that wait leave them to others.
PROCESSES ?= 2
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq --no-install-recommends
WIRE := proto/penstock/wire/v1

.DEFAULT_GOAL := help
.PHONY: help demo dev check test test-all bench protos wheel clean promtool

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/.installed-demo  ## See it work on real input, with everything killed once; no torch.
	@$(BIN)/penstock demo

dev: $(VENV)/.installed-dev  ## Install all that developing needs, torch among it.

check: $(VENV)/.installed-dev  ## ruff, mypy --strict, import-linter.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(VENV)/.installed-dev promtool  ## Run the tests.
	$(BIN)/python -m pytest -q -rs -m "not bench" -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

test-all: check test wheel  ## check, test and wheel.

bench: $(VENV)/.installed-dev  ## Print the benchmark tables, or one: NAMES=transfer. They decide nothing.
	$(BIN)/python tests/bench/run.py $(NAMES)

# grpcio-tools 1.78 writes code that runs on every protobuf that we allow; a newer one would evict
# trainers' pins. It has a venv of its own because it needs an older protobuf than the tests use.
protos: $(PROTOS)/.installed  ## Generate the code of the .proto files.
	$(PROTOS)/bin/python -m grpc_tools.protoc -Iproto \
		--python_out=proto --pyi_out=proto --grpc_python_out=proto $(WIRE)/*.proto
	rm -f $(WIRE)/error_pb2_grpc.py  # it has no service
	cd $(WIRE) && sha256sum *.proto > SOURCES.sha256

wheel: $(VENV)/.installed-dev  ## Build the wheel and the sdist into dist/.
	rm -rf dist
	$(BIN)/python -m build -q --outdir dist .
	ls -l dist

clean:  ## Remove what make has made here.
	rm -rf $(VENV) $(PROTOS) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# --- installs; a stamp makes the next call instant ---

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no python3 found: install Python 3.11 or newer, or say make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11: say make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing penstock and what its server needs into $(VENV) ..."
	@$(PIP) -e '.[server,tokenizers]'
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing all that developing and testing needs into $(VENV) ..."
	@$(PIP) torch
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed-demo

# The tests of deploy/prometheus need it; without it they say that they were not run.
promtool:
	@command -v promtool >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		{ $(APT) install -y prometheus || { $(APT) update && $(APT) install -y prometheus; }; } >/dev/null 2>&1; } || \
		echo "promtool is missing, so the tests of deploy/prometheus are not run: install Debian's package prometheus"

$(PROTOS)/.installed:
	$(PYTHON) -m venv $(PROTOS)
	$(PROTOS)/bin/python -m pip install -qq --disable-pip-version-check grpcio-tools==1.78.0
	@touch $@
