# GNU make, POSIX sh. `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Container images set it. The tests start a thousand Pythons, each of which would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

# Spark uses JAVA_HOME, so every recipe that starts Spark exports the home that .ci/jvm.sh found.
WITH_JAVA = JAVA_HOME="$$(sh .ci/jvm.sh)" && export JAVA_HOME &&

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  %-16s %s\n' "$$name" "$$text"; done

$(PYTHON):
	@for candidate in python3.11 python3.12 python3; do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "$$candidate -m venv $(VENV)"; \
			$$candidate -m venv $(VENV) && exit 0; \
			rm -rf $(VENV); \
			echo "That Python cannot make environments: install its venv module (Debian: python3-venv)." >&2; \
			exit 1; \
		fi; \
	done; \
	echo "Python 3.11 or later is needed: install it (Debian 12: apt-get install python3 python3-venv)." >&2; exit 1

INSTALL := sh tools/install.sh $(PYTHON) -e

# Sources of an installation other than Python's files. With Rust, the installation also builds the library.
BUILT_FROM := pyproject.toml setup.py native/Cargo.toml native/Cargo.lock $(wildcard native/src/*.rs)

# The command without the developers' tools, for `make demo`.
$(VENV)/.installed-run: $(BUILT_FROM) | $(PYTHON)
	$(INSTALL) '.[spark]'
	@touch $@

# Everything. This also counts as an installation of the command.
$(VENV)/.installed-dev: $(BUILT_FROM) | $(PYTHON)
	$(INSTALL) '.[spark,dev]'
	@touch $(VENV)/.installed-run $@

.PHONY: install
install: $(VENV)/.installed-dev ## Make .venv with the package, Spark, Delta and the developers' tools

.PHONY: jvm
jvm: ## Find Java 17 or 21; install Debian's if allowed, else say what to install
	@home="$$(sh .ci/jvm.sh --install)" && echo "Java: $$home"

.PHONY: browser
browser: ## Find Chromium, to test the lag monitor's page; install Debian's if allowed
	@found="$$(sh .ci/browser.sh --install)" && echo "Chromium: $$found"

.PHONY: demo
demo: $(VENV)/.installed-run jvm ## Stream four journals into a Delta table, kill the query twice, prove that nothing is lost or duplicated
	@$(WITH_JAVA) $(BIN)/gazette-spark demo $(DEMO_FLAGS)

.PHONY: broker-binaries
broker-binaries: ## Build the real Gazette broker and etcd into .cache/gazette (needs Go)
	@sh tests/deployed/build.sh

.PHONY: wheel-env
wheel-env: install ## Make the environments into which the tests install the wheel
	@sh tests/wheel_env.sh

.PHONY: spark-env
spark-env: install ## Make an environment for each supported release of Spark, for the soak: 3.5 GB
	@sh tests/spark_env.sh

.PHONY: oldest-spark-env
oldest-spark-env: install ## Make an environment with the oldest supported release of Spark: 0.9 GB
	@SPARK_RELEASES=4.0.5 sh tests/spark_env.sh

.PHONY: s3-server
s3-server: install jvm ## Fetch S3Proxy, to test object stores: 40 MB
	@$(WITH_JAVA) sh tests/deployed/jars.sh s3proxy

.PHONY: iceberg-env
iceberg-env: install jvm ## Fetch two REST catalogs and DuckDB, for the soak's tests of Iceberg tables: 400 MB
	@$(WITH_JAVA) sh tests/iceberg_env.sh

# Never fails, because JVMs only start more slowly without it.
.PHONY: class-archive
class-archive: install jvm ## Record the classes that Spark loads, so that the tests' JVMs start faster
	@$(WITH_JAVA) $(PYTHON) -m tests.rig.class_archive

# Every run writes its times to $(REPORTS), as JUnit XML.
REPORTS := .cache/reports
PYTEST = $(BIN)/pytest -q --durations=15 --junitxml=$(REPORTS)/$@.xml

.PHONY: style
style: install ## Check only the style: a second
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: lint
lint: style ## Check style and types, also of the tests
	$(BIN)/mypy

.PHONY: native
native: ## Check format, lints and tests of the native decoder; do nothing without Rust
	@if ! cargo --version >/dev/null 2>&1; then echo "cargo does not run here: the native decoder is not checked"; exit 0; fi; \
	cd native && cargo fmt --check && cargo clippy --quiet --offline --locked --all-targets -- -D warnings && \
	cargo test --quiet --offline --locked

.PHONY: fuzz
fuzz: install ## Fuzz the native decoder for SECONDS, 600 if unset; needs a nightly Rust
	@sh native/fuzz/run.sh $(SECONDS)

.PHONY: wheels
wheels: install ## Build the wheel for any platform into dist/ and, with Rust, the wheel for this one
	@rm -rf dist
	@$(PYTHON) -m tests.rig.wheel dist

.PHONY: sbom
sbom: wheels ## Write dist/gazette_spark.cdx.json, the bill of materials of a release, next to the wheels
	@sh tools/sbom.sh

.PHONY: lock
lock: install ## Write requirements-dev.txt: the newest allowed releases of all packages of `make install`, with hashes
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
		--custom-compile-command 'make lock' --extra spark --extra dev --output-file requirements-dev.txt pyproject.toml

.PHONY: api-check
api-check: install ## Compare the public interface with the newest release, or REF; fail if a patch release breaks it
	@$(PYTHON) -m tools.api_check $(REF)

# Each worker collects all tests, so there are few. They take the tests file by file: what a file's tests share is made
# once. In `make test-rest`, two workers have a JVM each that most Spark tests share.
TOGETHER = -n 3 --dist loadgroup --no-loadscope-reorder
CHECKED := tests/unit tests/property

# Types are checked during the tests, which sometimes wait for timers.
.PHONY: check
check: style ## Check lint and types, run the fast unit and property tests; no JVM, a minute and a half
	@types=$$(mktemp); $(BIN)/mypy >"$$types" 2>&1 & checker=$$!; \
	$(PYTEST) $(TOGETHER) -m checked $(CHECKED); tested=$$?; \
	wait $$checker; checked=$$?; \
	cat "$$types"; rm -f "$$types"; \
	[ $$tested -eq 0 ] && [ $$checked -eq 0 ]

# The other files of $(CHECKED) have no test that `make check` leaves out, so they need not be collected again.
.PHONY: test-rest
test-rest: install jvm browser broker-binaries s3-server wheel-env oldest-spark-env class-archive ## Run the tests that `make test` adds to `make check`
	@$(WITH_JAVA) $(PYTEST) $(TOGETHER) -m "not checked" $(filter-out $(CHECKED:=/),$(wildcard tests/*/)) \
		$$(grep -rl --include='*.py' 'mark\.slow' $(CHECKED))

# One after the other, even with `make -j`, so that the last output is the summary of the last test run.
.PHONY: test
test: ## Install everything needed, check lint and types, run all tests except the soak's: at most 25 minutes
	@sh .ci/prepare.sh
	@$(MAKE) --no-print-directory test-rest

.PHONY: test-source
test-source: install jvm broker-binaries class-archive ## Run the tests of the source: framing, store, scan, Spark
	@$(WITH_JAVA) $(PYTEST) $(TOGETHER) tests/unit/formats tests/unit/options tests/unit/scan tests/unit/store \
		tests/unit/test_source.py tests/property/test_framing*.py tests/property/test_source*.py \
		tests/property/test_scan.py tests/conformance/test_source*.py tests/conformance/test_stores.py \
		tests/spark/test_source*.py tests/spark/test_pushdown.py tests/spark/test_backfill.py

.PHONY: test-sink
test-sink: install jvm broker-binaries class-archive ## Run the tests of the sink: ledger, table, Delta, kills
	@$(WITH_JAVA) $(PYTEST) $(TOGETHER) tests/unit/ledger tests/unit/table tests/property/test_ledger*.py \
		tests/property/test_schema_fit.py tests/spark/test_sink*.py \
		tests/spark/test_ledger_reading.py tests/spark/test_verify.py tests/spark/test_kill.py tests/spark/test_crashes.py

.PHONY: test-broker
test-broker: install jvm broker-binaries s3-server ## Run the tests of the embedded broker and the client, also with the real broker
	@$(WITH_JAVA) $(PYTEST) $(TOGETHER) tests/unit/broker tests/unit/client tests/property/test_broker*.py \
		tests/property/test_client*.py tests/property/test_append_queue.py tests/conformance -m "not spark"

.PHONY: soak
soak: install jvm browser s3-server wheel-env spark-env iceberg-env class-archive ## Run everything on every broker, with new seeds and 1,000 crashes: hours
	@sh tests/deployed/build.sh --soak
	@$(WITH_JAVA) SOAK_PARTS="$(SOAK_PARTS)" sh .ci/soak.sh

.PHONY: notebooks
notebooks: install jvm ## Run the notebooks, or those in ONLY, and store their tables and plots in them
	@$(WITH_JAVA) $(PYTHON) -m tests.rig.notebooks $(ONLY)

.PHONY: test-protobuf
test-protobuf: install ## Test the generated stubs on protobuf 5.29, 6 and 7
	sh tests/protobuf_matrix.sh

.PHONY: test-pythons
test-pythons: install ## Run the unit tests on Python 3.12 to 3.14, or on those in PYTHONS
	@PYTHONS="$(PYTHONS)" sh tests/python_matrix.sh

.PHONY: crash
crash: install jvm class-archive ## Run N random crash schedules from SEED on, alternating the kinds of sinks; print the seeds that fail
	@$(WITH_JAVA) $(PYTHON) -m tests.rig.crashes --schedules $(or $(N),10) $(if $(SEED),--seed $(SEED)) $(CRASH_FLAGS)

.PHONY: docs
docs: install ## Build the site of docs/ into build/site; fail on a dead link or a missing page
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: generated
generated: install ## Make the stubs of tools/proto, the tables of options, errors and metrics, and the list of public names
	@$(PYTHON) -m tools.generate_stubs && $(PYTHON) -m tools.option_pages && $(PYTHON) -m tools.error_page && \
		$(PYTHON) -m tools.lag_metrics_page && $(PYTHON) -m tools.speed_chart && $(PYTHON) -m tools.public_names

.PHONY: bench
bench: install jvm broker-binaries ## Compare with Spark's Kafka source and file readers; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/end_to_end.py $(BENCH_FLAGS)

.PHONY: bench-planning
bench-planning: install broker-binaries ## Measure the planning of a batch over 1,000 and 10,000 journals
	@$(PYTHON) benchmarks/planning_bench.py --timed --broker deployed --journals 1000 --journals 10000 $(BENCH_FLAGS)

.PHONY: bench-commits
bench-commits: install jvm ## Compare the sink's commit with Delta's append; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/commit_bench.py --timed $(BENCH_FLAGS)

.PHONY: bench-audit
bench-audit: install jvm ## Measure the cost of DeltaSink(audit=True) for a batch; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/audit_bench.py --timed $(BENCH_FLAGS)

.PHONY: bench-small-batches
bench-small-batches: install jvm broker-binaries ## Measure a stream of small batches by the sink's settings; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/small_batches.py --timed $(BENCH_FLAGS)

.PHONY: bench-steady
bench-steady: install jvm broker-binaries ## Stream for an hour at constant load and measure growth; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/steady_load.py --timed $(BENCH_FLAGS)

.PHONY: bench-log
bench-log: install jvm broker-binaries ## Compare a replicated log's commit times with kafka-go's on a Kafka broker
	@$(WITH_JAVA) $(PYTHON) benchmarks/replicated_log_bench.py --timed $(BENCH_FLAGS)

.PHONY: bench-client
bench-client: install broker-binaries ## Compare our client and broker with gazctl, Go's client and the real broker, in MB/s
	@$(PYTHON) benchmarks/client_parity.py --timed $(BENCH_FLAGS)

.PHONY: bench-committed
bench-committed: install ## Measure the CPU time of reading committed messages; write docs/evidence/performance.md
	@$(PYTHON) benchmarks/committed_bench.py --timed --megabytes 80 --memory 5g $(BENCH_FLAGS)

.PHONY: bench-consumer-state
bench-consumer-state: install jvm ## Measure a transaction on Spark by the number of keys; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/consumer_state_bench.py --timed --report --times 5 --keys 1m --keys 10m --keys 100m $(BENCH_FLAGS)

.PHONY: bench-consumer
bench-consumer: install jvm broker-binaries ## Compare the consumer's hosts with Gazette's consumer; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/consumer_bench.py --timed --report $(BENCH_FLAGS)

.PHONY: clean
clean: ## Remove .venv, caches and build output
	rm -rf native/target gazette_spark/_formats/libgazette_json.so gazette_spark/_delta/s3-log-store.jar
	rm -rf $(VENV) .cache .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
