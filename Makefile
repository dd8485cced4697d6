# Every command of the project. Each sets up what it needs; `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JAVA_VERSIONS := 4.9.7 5.5.0
VECTORS_POM := tests/java/vectors/pom.xml
BROKER_SUITE := tests/spark/faults/test_two_brokers.py tests/spark/faults/test_ways_to_brokers.py
SPARK_SUITE := $(wildcard tests/spark/test_source_*.py tests/spark/test_sink_*.py)

# Tests start hundreds of Python processes. Without byte code on disk, each would compile all that
# it imports
export PYTHONDONTWRITEBYTECODE :=

# Tests marked `deep` run by default. `make test` leaves them out to be quick, and `make seeded`
# because it measures `make test`
export ROCKETPOLL_DEEP := 1
test: ROCKETPOLL_DEEP :=

# Frames of a longer run: make fuzz FRAMES=10000000
FRAMES ?= 1000000

.PHONY: help check quick format lint types test deep lowest wide demo picture pictures \
	site notebooks archive tour fuzz crash powerloss world clientworld forks sparkworld commitworld \
	lieworld holds seeded peers matrix cluster restarts golden vectors fresh image bench releasable \
	release clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

# Jobs that use one core run in parallel; if one fails, no test starts
check: $(READY)  ## what must hold before a commit; CI runs this, then `make deep`
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint types
	$(MAKE) --no-print-directory test

# Against another commit than the merge base with main: make quick BASE=HEAD
quick: ROCKETPOLL_DEEP :=
quick: $(READY)  ## check what changed, in a minute: lint, types, tests without sockets and Spark
	$(BIN)/python tools/quick.py $(BASE)

$(READY): pyproject.toml setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

format: $(READY)  ## format the sources, fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(READY)  ## format, lint rules, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

# Types are checked for the oldest supported Python, unless the installed numpy has no hints for it
IS_OLD = import sys; sys.exit(sys.version_info >= (3, 12))
OLDEST = $(shell $(BIN)/python -c '$(IS_OLD)' && echo 3.10 || echo 3.12)

types: $(READY)  ## mypy, strict
	$(BIN)/mypy --python-version $(OLDEST)

# Processes that run test files: make test JOBS=1. Five on two cores, because some tests wait: with
# four, a fifth of the CPU is idle. Each imports only the files that it runs, and counts files
# instead of tests: there is no percentage
JOBS ?= 5

# Class data of a first Spark driver, with which later drivers start in a third of the time. The
# default suite has one driver, so that it would only lose time
CLASSES := build/spark-classes/.ready

$(CLASSES): $(READY)
	$(BIN)/python tests/support/spark/class_data_archive.py
	mkdir -p $(@D) && touch $@

# Seconds. Tests of the default suite take two minutes at most: one that takes longer hangs
PATIENCE ?= 400
SUITE = $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder \
	--late-collection -o console_output_style=classic --timeout $(PATIENCE)

# Tests use real sockets, processes and clocks, several files at a time. Failed tests run once more,
# alone: a fault fails again; a test that passes then is named, because it needs a fix as well
AGAIN = || { test $$? -eq 1 && $(BIN)/python -m pytest --last-failed \
	--last-failed-no-failures none -v -rA --show-capture no --timeout $(PATIENCE) && \
	echo 'Failed beside others and passed alone: the tests above.' \
	'Each depends on what else the machine does; please report it'; }

test: $(READY)  ## the default suite
	$(SUITE) $(AGAIN)

deep: $(READY) $(CLASSES)  ## tests with JVMs, kills or many seconds, which `make test` leaves out
	$(SUITE) -m deep $(AGAIN)

# The lowest versions that pyproject.toml allows, on the oldest Python of this machine for which
# they have wheels. A new .venv gets the newest versions
LOWEST := build/lowest
LOWEST_PYTHON ?= $(firstword $(foreach minor,10 11 12,$(shell \
	python3.$(minor) -c 'import ensurepip, sys, venv; print(sys.executable)' 2> /dev/null)))
LOWEST_TOOLS := greenlet hypothesis opentelemetry-sdk pydantic pytest pytest-timeout pytest-xdist
LOWEST_SUITE ?= tests/wire tests/filter tests/longpolling tests/metrics tests/processor \
	tests/server tests/settings tests/state tests/store $(wildcard tests/test_broker*.py) \
	tests/client tests/cli/test_output.py tests/cli/test_store_command.py
# CI runs this selection, which uses each dependency in the way that the product does
LOWEST_TELLING := $(addprefix tests/wire/,bodies chunk test_compression.py test_header_json.py \
	test_header_msgpack.py test_message_batch.py) tests/client/reading/test_bulk_pull.py \
	tests/client/reading/test_log_files.py tests/client/test_avro_bodies.py \
	tests/client/test_opentelemetry.py tests/client/test_schema_registry.py \
	tests/client/producer/test_arrow_sends.py \
	tests/metrics/test_metrics_service.py tests/cli/test_output.py tests/test_broker.py
# Without Spark and without the larger extras
LOWEST_WITHOUT := $(addprefix --ignore=,tests/client/admin/test_arrow_reads.py \
	tests/client/reading/test_rolled_back_offsets.py tests/client/test_hosts.py)

$(LOWEST)/.ready: pyproject.toml setup.cfg tests/support/programs/lowest_versions.py
	test -n '$(LOWEST_PYTHON)' || { echo 'no Python 3.10, 3.11 or 3.12 with venv is here'; exit 1; }
	rm -rf $(LOWEST)
	$(LOWEST_PYTHON) -m venv $(LOWEST)
	$(LOWEST_PYTHON) tests/support/programs/lowest_versions.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --only-binary :all: \
	  --constraint $(LOWEST)/constraints.txt --editable '.[avro,opentelemetry,protobuf]' \
	  $(LOWEST_TOOLS)
	touch $@

# Its failures are kept apart from those of `make deep`, beside which CI runs it
lowest: export PYTEST_ADDOPTS := -o cache_dir=$(LOWEST)/.pytest_cache
lowest: BIN := $(LOWEST)/bin
lowest: ROCKETPOLL_DEEP :=
lowest: $(LOWEST)/.ready  ## wire, client and broker with the lowest allowed versions
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --timeout $(PATIENCE) \
	  $(LOWEST_WITHOUT) $(LOWEST_SUITE) $(AGAIN)

wide: $(READY) $(CLASSES)  ## all tests, with more rounds and seeds: half an hour
	ROCKETPOLL_WIDE=1 $(SUITE)

# The demo needs Spark alone, a third of what the tests need
SPARK_READY := $(VENV)/.spark-ready

$(SPARK_READY): pyproject.toml setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo 'installing rocketpoll and PySpark into $(VENV): about 800 MB, once'
	$(BIN)/python -m pip install --editable '.[spark]'
	touch $@

DEMO_READY := $(or $(wildcard $(READY)),$(SPARK_READY))

demo: $(DEMO_READY)  ## run a broker, a producer and a Spark stream in this terminal (Java 17)
	$(BIN)/rocketpoll demo

picture: $(READY)  ## redraw docs/demo.svg, on a quiet machine (Java 17)
	$(BIN)/rocketpoll demo --seconds 20 --picture docs/demo.svg

pictures: $(READY)  ## redraw the pictures of docs/speed.md from benchmarks/results
	$(BIN)/python -m benchmarks.pictures

site: $(READY)  ## build the site; view it with python3 -m http.server -d build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Some of them: make notebooks NOTEBOOKS='lag explore'
notebooks: $(READY)  ## run the notebooks and save their outputs, on a quiet machine (Java 17)
	$(BIN)/python tests/support/programs/notebook_runs.py $(NOTEBOOKS)

archive: $(READY)  ## build dist/rocketpoll.zip for spark-submit --py-files
	$(BIN)/rocketpoll archive dist/rocketpoll.zip

tour: $(READY)  ## run a broker, producers and consumers, without Spark
	$(BIN)/python examples/broker_tour.py

fuzz: $(READY)  ## mutated frames by the million: make fuzz FRAMES=10000000
	ROCKETPOLL_FUZZ_FRAMES=$(FRAMES) $(BIN)/python -m pytest tests/wire/test_mutations.py

# Longer campaigns against the store: make crash CRASHES=20000 KILLS=2000 DAMAGES=50
CRASHES ?= 5000
KILLS ?= 300
DAMAGES ?= 20

crash: $(READY)  ## thousands of crashes, failing disks, flipped bits and kill -9
	ROCKETPOLL_POWER_LOSSES=$(CRASHES) ROCKETPOLL_FLIPPED_BITS=$(CRASHES) \
	ROCKETPOLL_LOST_FILES=$(CRASHES) ROCKETPOLL_FAILURES=$(CRASHES) ROCKETPOLL_STORIES=$(CRASHES) \
	ROCKETPOLL_KILL_CYCLES=$(KILLS) ROCKETPOLL_DAMAGE_ROUNDS=$(DAMAGES) \
	  $(BIN)/python -m pytest tests/store tests/test_broker_every_damage.py

# Kills or power losses of a broker process: make powerloss CYCLES=3000. Its disks stay in
# build/powerloss for the analysis of a finding
CYCLES ?= 300

powerloss: $(READY)  ## 300 kills and power losses of a broker, checked against all its answers
	ROCKETPOLL_POWER_LOSS_LIVES=$(CYCLES) \
	  $(BIN)/python -m pytest -s tests/real_world/test_power_losses.py -k promised \
	  --basetemp build/powerloss

# Runs of a simulated broker: make world SEEDS=20000 FIRST=1000
SEEDS ?= 2000
FIRST ?= 0

world: $(READY)  ## simulated brokers, a run for each seed; a failing run is reduced
	PYTHONPATH=.:tests $(BIN)/python -m world --first $(FIRST) --seeds $(SEEDS)

clientworld: $(READY)  ## simulated groups and producers: make clientworld SEEDS=20000
	PYTHONPATH=.:tests $(BIN)/python -m world.clients --first $(FIRST) --seeds $(SEEDS)
	PYTHONPATH=.:tests $(BIN)/python -m world.clients.transacting --first $(FIRST) --seeds $(SEEDS)
	PYTHONPATH=.:tests $(BIN)/python -m world.clients.popping --first $(FIRST) --seeds $(SEEDS)

forks: SEEDS = 500
forks: $(READY)  ## processes that fork while they have clients, a run for each seed
	PYTHONPATH=.:tests $(BIN)/python -m forks --first $(FIRST) --seeds $(SEEDS) --beside 2

sparkworld: $(READY)  ## simulated source and sink: make sparkworld SEEDS=20000
	PYTHONPATH=.:tests $(BIN)/python -m world.spark --first $(FIRST) --seeds $(SEEDS)

commitworld: $(READY)  ## simulated exactly-once sinks, with faults at every step of a commit
	PYTHONPATH=.:tests $(BIN)/python -m world.spark.at_commits --first $(FIRST) --seeds $(SEEDS)

lieworld: $(READY)  ## simulated client and Spark, with brokers whose answers are wrong
	PYTHONPATH=.:tests $(BIN)/python -m world.clients.lied_to --first $(FIRST) --seeds $(SEEDS)
	PYTHONPATH=.:tests $(BIN)/python -m world.spark.lied_to --first $(FIRST) --seeds $(SEEDS)

# Some of the bugs in tests/seeded/bugs: make seeded BUGS='lock-renewal-ignored file-flush-missing'
seeded: ROCKETPOLL_DEEP :=
seeded: $(READY)  ## put known bugs into a copy of the sources; a test must catch each
	PYTHONPATH=tests $(BIN)/python -m seeded $(BUGS)

peers: $(READY) $(CLASSES)  ## the same tests against RocketMQ and our broker (Java 17, Maven)
	ROCKETPOLL_WIDE=1 ROCKETPOLL_PEERS=1 ROCKETPOLL_REQUIRE_INTEROP=1 ROCKETPOLL_BROKER_KILLS=30 \
	  $(BIN)/python -m pytest tests/interop tests/client tests/cli tests/metrics tests/benchmarks \
	  $(BROKER_SUITE) $(SPARK_SUITE)

# Releases of Spark: make matrix SPARKS=4.1; with real brokers as well: ROCKETPOLL_PEERS=1 make
# matrix
SPARKS ?= 4.0 4.1 4.2 4.3

build/spark-%/.ready: pyproject.toml setup.cfg
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable '.[dev]' 'pyspark==$*.*'
	$(@D)/bin/python tests/support/spark/class_data_archive.py
	touch $@

matrix: $(SPARKS:%=build/spark-%/.ready)  ## tests of source and sink on every release of Spark
	for version in $(SPARKS); do \
	  ROCKETPOLL_WIDE=1 build/spark-$$version/bin/python -m pytest $(SPARK_SUITE) \
	    tests/spark/test_sql_tables.py || exit 1; \
	done

# Makes Spark start a second copy of a slow task after a fraction of a second
SPECULATION := --conf spark.speculation=true --conf spark.speculation.quantile=0.1 \
	--conf spark.speculation.multiplier=1.1 --conf spark.speculation.efficiency.enabled=false

cluster: $(READY) $(CLASSES)  ## the same on a Spark cluster of two workers on this machine
	PYTHONPATH=tests $(BIN)/python -m support.spark.cluster $(SPARK_SUITE)
	PYTHONPATH=tests $(BIN)/python -m support.spark.cluster $(SPECULATION) \
	  $(wildcard tests/spark/test_*_speculation.py)

# Races between arriving messages and pulls that find nothing: make holds ROUNDS=1000000
ROUNDS ?= 100000

holds: $(READY)  ## a message and its pull at the same moment, 100,000 times; bad requests and disks
	ROCKETPOLL_HOLD_ROUNDS=$(ROUNDS) ROCKETPOLL_FUZZ_REQUESTS=$(ROUNDS) \
	ROCKETPOLL_BROKER_FAILURE_STEP=1 $(BIN)/python -m pytest \
	  tests/test_broker_holds.py tests/test_broker_bad_input.py tests/test_broker_durability.py

# Kills, and topics that are deleted and created, under a Spark query: make restarts ROUNDS=1000; in
# another order: SEED=1
SEED ?= 0
restarts: ROUNDS = 120
restarts: $(READY) $(CLASSES)  ## kill -9 of all parts of Spark queries, every row counted (Java 17)
	ROCKETPOLL_WIDE=1 ROCKETPOLL_RESTARTS=$(ROUNDS) ROCKETPOLL_EXACTLY_ONCE=$(ROUNDS) \
	ROCKETPOLL_AGGREGATE_RESTARTS=$(ROUNDS) ROCKETPOLL_STRESS_ROUNDS=$(ROUNDS) ROCKETPOLL_STOPS=50 \
	ROCKETPOLL_PIPELINE_SECONDS=600 ROCKETPOLL_RESTARTS_SEED=$(SEED) \
	  $(BIN)/python -m pytest tests/spark/faults

golden: $(READY)  ## checkpoints of this release and Spark, for later releases to load (Java 17)
	PYTHONPATH=.:tests $(BIN)/python tests/spark/golden/make_golden.py

vectors: $(READY)  ## regenerate tests/vectors with RocketMQ's own classes (Java 17, Maven)
	for version in $(JAVA_VERSIONS); do \
	  mvn -q -B -f $(VECTORS_POM) -Drocketmq.version=$$version \
	    -Dvectors.build=$(CURDIR)/build/vectors/$$version \
	    package dependency:copy-dependencies \
	    -DoutputDirectory=$(CURDIR)/build/vectors/$$version/lib || exit 1; \
	  java -cp "build/vectors/$$version/classes:build/vectors/$$version/lib/*" \
	    rocketpoll.vectors.Main write tests/vectors/$$version || exit 1; \
	done
	PYTHONPATH=.:tests $(BIN)/python -m support.access.answers

# One release, one of the README's commands, and one more after it: make fresh RELEASES=bookworm
# COMMANDS=demo ALSO='make lint'
RELEASES ?= bookworm trixie
COMMANDS ?= demo check
MINUTES ?= 120

fresh:  ## the README's commands in bare roots of Debian 12 and 13 (as root; debootstrap)
	$(PYTHON) tests/support/programs/fresh_debian.py --releases $(RELEASES) --commands $(COMMANDS) \
	  --also "$$ALSO" --minutes $(MINUTES)

image:  ## run the steps of deploy/Dockerfile in a bare Debian 13, and the result (as root)
	PYTHONPATH=tests $(PYTHON) -m support.programs.image_steps

bench: $(READY)  ## all benchmarks; results in build/bench
	$(BIN)/python -m benchmarks.wire
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.filter
	$(BIN)/python -m benchmarks.turns
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.gaps
	$(BIN)/python -m benchmarks.broker
	$(BIN)/python -m benchmarks.client
	$(BIN)/python -m benchmarks.aio
	$(BIN)/python -m benchmarks.telemetry
	$(BIN)/python -m benchmarks.embedded
	$(BIN)/python -m benchmarks.tls
	$(BIN)/python -m benchmarks.abuse
	$(BIN)/python -m benchmarks.spark
	for each in tasks planning beside_idle exactly_once typed_bodies; do \
	  $(BIN)/python -m benchmarks.spark.$$each || exit 1; \
	done

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

# Quick checks come first, so that an incomplete release fails before half an hour of tests
releasable:
	grep -q '^repository = "https://' pyproject.toml || { \
	  echo "pyproject.toml: repository has no address: see docs/releasing.md"; exit 1; }
	git diff --quiet HEAD || { echo "there are uncommitted changes: commit them"; exit 1; }
	grep -q '^## $(VERSION)' CHANGELOG.md || { echo "CHANGELOG.md has no section $(VERSION)"; exit 1; }

release: releasable check fresh  ## build, check, try in bare Debians, tag: docs/releasing.md
	$(BIN)/python -m pip install --quiet build twine
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	REQUIRE_FRESH=1 $(PYTHON) tests/support/programs/fresh_debian.py --releases $(RELEASES) \
	  --wheel dist/*.whl --minutes $(MINUTES)
	git tag --annotate v$(VERSION) --message "rocketpoll $(VERSION)"

clean:  ## delete everything that was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
