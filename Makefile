# GNU make, POSIX sh. `make help` lists what there is.

VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Container images set it. The tests start a thousand Pythons, each of which would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

# Spark obeys JAVA_HOME, so every recipe that starts one exports the home that .ci/jvm.sh found.
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

# What an installation is made from, beside Python's files: the library is built with it, where Rust is installed.
BUILT_FROM := pyproject.toml setup.py native/Cargo.toml native/Cargo.lock $(wildcard native/src/*.rs)

# The command without the developers' tools, for `make demo`.
$(VENV)/.installed-run: $(BUILT_FROM) | $(PYTHON)
	$(INSTALL) '.[spark]'
	@touch $@

# Everything; it counts as an installation of the command, too.
$(VENV)/.installed-dev: $(BUILT_FROM) | $(PYTHON)
	$(INSTALL) '.[spark,dev]'
	@touch $(VENV)/.installed-run $@

.PHONY: install
install: $(VENV)/.installed-dev ## Make .venv with the package, Spark, Delta and the developers' tools

.PHONY: jvm
jvm: ## Find Java 17 or 21; install Debian's where allowed, else say what to install
	@home="$$(sh .ci/jvm.sh --install)" && echo "Java: $$home"

.PHONY: browser
browser: ## Find Chromium, for the test of the lag monitor's page; install Debian's where allowed
	@found="$$(sh .ci/browser.sh --install)" && echo "Chromium: $$found"

.PHONY: demo
demo: $(VENV)/.installed-run jvm ## Stream four journals into a Delta table, kill the query twice, prove nothing is lost or doubled
	@$(WITH_JAVA) $(BIN)/gazette-spark demo $(DEMO_FLAGS)

.PHONY: broker-binaries
broker-binaries: ## Build the real Gazette broker and etcd into .cache/gazette (needs Go)
	@sh tests/deployed/build.sh

.PHONY: wheel-env
wheel-env: install ## Make the environments that the tests install the wheel into
	@sh tests/wheel_env.sh

.PHONY: spark-env
spark-env: install ## Make an environment with each supported release of Spark, for the soak: 3.5 GB
	@sh tests/spark_env.sh

.PHONY: oldest-spark-env
oldest-spark-env: install ## Make an environment with the oldest supported release of Spark: 0.9 GB
	@SPARK_RELEASES=4.0.5 sh tests/spark_env.sh

.PHONY: s3-server
s3-server: install jvm ## Fetch S3Proxy, on which object stores are tested: 40 MB
	@$(WITH_JAVA) sh tests/deployed/jars.sh s3proxy

.PHONY: iceberg-env
iceberg-env: install jvm ## Fetch two REST catalogs and DuckDB, for the soak's tests of Iceberg tables: 400 MB
	@$(WITH_JAVA) sh tests/iceberg_env.sh

# Never fails: without it JVMs start slower.
.PHONY: class-archive
class-archive: install jvm ## Write down the classes Spark loads, so that the tests' JVMs start faster
	@$(WITH_JAVA) $(PYTHON) -m tests.rig.class_archive

# Every run leaves its times in $(REPORTS), as JUnit XML.
REPORTS := .cache/reports
PYTEST = $(BIN)/pytest -q --durations=15 --junitxml=$(REPORTS)/$@.xml

.PHONY: style
style: install ## Style alone: a second
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: lint
lint: style ## Style and types, of the tests too
	$(BIN)/mypy

.PHONY: native
native: ## Format, lints and tests of the native decoder; nothing without Rust
	@if ! cargo --version >/dev/null 2>&1; then echo "cargo does not run here: the native decoder is not checked"; exit 0; fi; \
	cd native && cargo fmt --check && cargo clippy --quiet --offline --locked --all-targets -- -D warnings && \
	cargo test --quiet --offline --locked

.PHONY: fuzz
fuzz: install ## Fuzz the native decoder for SECONDS, 600 if unset; needs a nightly Rust
	@sh native/fuzz/run.sh $(SECONDS)

.PHONY: wheels
wheels: install ## Build into dist/ the wheel for any platform and, where Rust is installed, that of this one
	@rm -rf dist
	@$(PYTHON) -m tests.rig.wheel dist

.PHONY: sbom
sbom: wheels ## Write dist/gazette_spark.cdx.json, the bill of materials of a release, beside the wheels
	@sh tools/sbom.sh

.PHONY: lock
lock: install ## Write requirements-dev.txt: the newest allowed releases of all that `make install` brings, with hashes
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
		--custom-compile-command 'make lock' --extra spark --extra dev --output-file requirements-dev.txt pyproject.toml

.PHONY: api-check
api-check: install ## Compare the public interface with that of the newest release, or of REF; fail if a patch release breaks it
	@$(PYTHON) -m tools.api_check $(REF)

# Each worker collects all tests, so there are few. They take the tests file by file: what a file's tests share is made
# once. In `make test-rest`, two workers have a JVM each that most Spark tests share.
TOGETHER = -n 3 --dist loadgroup --no-loadscope-reorder
CHECKED := tests/unit tests/property

# Types are checked beside the tests, which wait for timers now and then.
.PHONY: check
check: style ## Lint, types, unit and property tests but the slow ones; no JVM, a minute and a half
	@types=$$(mktemp); $(BIN)/mypy >"$$types" 2>&1 & checker=$$!; \
	$(PYTEST) $(TOGETHER) -m checked $(CHECKED); tested=$$?; \
	wait $$checker; checked=$$?; \
	cat "$$types"; rm -f "$$types"; \
	[ $$tested -eq 0 ] && [ $$checked -eq 0 ]

# The other files of $(CHECKED) have no test that `make check` leaves out, so they need not be collected again.
.PHONY: test-rest
test-rest: install jvm browser broker-binaries s3-server wheel-env oldest-spark-env class-archive ## What `make test` adds to `make check`
	@$(WITH_JAVA) $(PYTEST) $(TOGETHER) -m "not checked" $(filter-out $(CHECKED:=/),$(wildcard tests/*/)) \
		$$(grep -rl --include='*.py' 'mark\.slow' $(CHECKED))

# One after the other, even under `make -j`: the last output is the last test run's summary.
.PHONY: test
test: ## Install what is needed, then lint, types and all tests but the soak's: 25 minutes at most
	@sh .ci/prepare.sh
	@$(MAKE) --no-print-directory test-rest

.PHONY: test-source
test-source: install jvm broker-binaries class-archive ## The tests of the source: framing, store, scan, Spark
	@$(WITH_JAVA) $(PYTEST) $(TOGETHER) tests/unit/formats tests/unit/options tests/unit/scan tests/unit/store \
		tests/unit/test_source.py tests/property/test_framing*.py tests/property/test_source*.py \
		tests/property/test_scan.py tests/conformance/test_source*.py tests/conformance/test_stores.py \
		tests/spark/test_source*.py tests/spark/test_pushdown.py tests/spark/test_backfill.py

.PHONY: test-sink
test-sink: install jvm broker-binaries class-archive ## The tests of the sink: ledger, table, Delta, kills
	@$(WITH_JAVA) $(PYTEST) $(TOGETHER) tests/unit/ledger tests/unit/table tests/property/test_ledger*.py \
		tests/property/test_schema_fit.py tests/spark/test_sink*.py \
		tests/spark/test_ledger_reading.py tests/spark/test_verify.py tests/spark/test_kill.py tests/spark/test_crashes.py

.PHONY: test-broker
test-broker: install jvm broker-binaries s3-server ## The tests of the embedded broker and the client, on the real broker too
	@$(WITH_JAVA) $(PYTEST) $(TOGETHER) tests/unit/broker tests/unit/client tests/property/test_broker*.py \
		tests/property/test_client*.py tests/property/test_append_queue.py tests/conformance -m "not spark"

.PHONY: soak
soak: install jvm browser s3-server wheel-env spark-env iceberg-env class-archive ## Everything, on every broker, with fresh seeds and 1,000 crashes: hours
	@sh tests/deployed/build.sh --soak
	@$(WITH_JAVA) SOAK_PARTS="$(SOAK_PARTS)" sh .ci/soak.sh

.PHONY: notebooks
notebooks: install jvm ## Run the notebooks, or those named in ONLY, and store their tables and plots with them
	@$(WITH_JAVA) $(PYTHON) -m tests.rig.notebooks $(ONLY)

.PHONY: test-protobuf
test-protobuf: install ## Load and round-trip the generated stubs on protobuf 5.29, 6 and 7
	sh tests/protobuf_matrix.sh

.PHONY: test-pythons
test-pythons: install ## Run the unit tests on Python 3.12 to 3.14, or on those in PYTHONS
	@PYTHONS="$(PYTHONS)" sh tests/python_matrix.sh

.PHONY: crash
crash: install jvm class-archive ## Run N random schedules of crashes from SEED on, each kind of sink in turn; print the seeds that fail
	@$(WITH_JAVA) $(PYTHON) -m tests.rig.crashes --schedules $(or $(N),10) $(if $(SEED),--seed $(SEED)) $(CRASH_FLAGS)

.PHONY: docs
docs: install ## Build the site of docs/ into build/site; fail on a dead link or a missing page
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: generated
generated: install ## Make the stubs of tools/proto, the tables of options, errors and metrics, and the list of public names
	@$(PYTHON) -m tools.generate_stubs && $(PYTHON) -m tools.option_pages && $(PYTHON) -m tools.error_page && \
		$(PYTHON) -m tools.lag_metrics_page && $(PYTHON) -m tools.speed_chart && $(PYTHON) -m tools.public_names

.PHONY: bench
bench: install jvm broker-binaries ## Measure beside Spark's Kafka source and file readers; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/end_to_end.py $(BENCH_FLAGS)

.PHONY: bench-planning
bench-planning: install broker-binaries ## Measure how long a batch over 1,000 and 10,000 journals is planned
	@$(PYTHON) benchmarks/planning_bench.py --timed --broker deployed --journals 1000 --journals 10000 $(BENCH_FLAGS)

.PHONY: bench-commits
bench-commits: install jvm ## Measure a commit of the sink beside Delta's own append; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/commit_bench.py --timed $(BENCH_FLAGS)

.PHONY: bench-audit
bench-audit: install jvm ## Measure what DeltaSink(audit=True) costs a batch; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/audit_bench.py --timed $(BENCH_FLAGS)

.PHONY: bench-small-batches
bench-small-batches: install jvm broker-binaries ## Measure a stream of small batches by the sink's settings; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/small_batches.py --timed $(BENCH_FLAGS)

.PHONY: bench-steady
bench-steady: install jvm broker-binaries ## Stream for an hour at constant load and see what grows; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/steady_load.py --timed $(BENCH_FLAGS)

.PHONY: bench-log
bench-log: install jvm broker-binaries ## Print a replicated log's commit times beside kafka-go's on a Kafka broker
	@$(WITH_JAVA) $(PYTHON) benchmarks/replicated_log_bench.py --timed $(BENCH_FLAGS)

.PHONY: bench-client
bench-client: install broker-binaries ## Print MB/s of our client and broker beside gazctl, Go's client and the real broker
	@$(PYTHON) benchmarks/client_parity.py --timed $(BENCH_FLAGS)

.PHONY: bench-committed
bench-committed: install ## Measure what reading committed messages costs, in CPU time; write docs/evidence/performance.md
	@$(PYTHON) benchmarks/committed_bench.py --timed --megabytes 80 --memory 5g $(BENCH_FLAGS)

.PHONY: bench-consumer-state
bench-consumer-state: install jvm ## Measure a transaction on Spark by the keys of the state; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/consumer_state_bench.py --timed --report --times 5 --keys 1m --keys 10m --keys 100m $(BENCH_FLAGS)

.PHONY: bench-consumer
bench-consumer: install jvm broker-binaries ## Measure the consumer's hosts beside Gazette's consumer; write docs/evidence/performance.md
	@$(WITH_JAVA) $(PYTHON) benchmarks/consumer_bench.py --timed --report $(BENCH_FLAGS)

.PHONY: clean
clean: ## Remove .venv, caches and build output
	rm -rf native/target gazette_spark/_formats/libgazette_json.so gazette_spark/_delta/s3-log-store.jar
	rm -rf $(VENV) .cache .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
