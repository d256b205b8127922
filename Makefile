# One command per thing a person wants; each sets up what it needs, in .venv and .servers of this folder.
# Another interpreter, as in PYTHON=python3.13, has a folder of its own beside .venv, such as .venv-3.13.
PYTHON ?= python3
VENV := .venv
ifneq ($(origin PYTHON),file)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
$(if $(VERSION),,$(error PYTHON=$(PYTHON) does not start))
VENV := .venv-$(VERSION)
endif
PROFILE ?= ci
AT_ONCE ?= 3
BIN := $(VENV)/bin
SERVERS := $(VENV)/servers .servers/versitygw .servers/kafka.stamp .servers/hadoop.stamp .servers/postgres.stamp \
	.servers/prometheus.stamp .servers/pravega.stamp .servers/chromium.stamp .servers/spark-kafka.stamp

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

demo: $(VENV)/demo  ## clicks are counted on Spark, a worker is killed, the output is compared with the truth
	$(BIN)/python -m examples.clicks --svg build/latency-around-a-kill.svg

test: $(VENV)/test  ## all tests that need no server, AT_ONCE=3 of them at a time; PROFILE=thorough searches 50 times further and more
	EPOCHCUT_PROFILE=$(PROFILE) $(BIN)/python -m pytest -n $(AT_ONCE) --dist worksteal -m "not servers" $(ARGS)

# Apart from the tests, and without the longest searches: tracing makes them many times slower.
coverage: $(VENV)/test  ## which lines and branches the tests reach
	$(BIN)/coverage run -m pytest -q -m "not servers" --deselect tests/test_planted_errors.py \
		--deselect tests/test_whole_job.py::test_a_job_keeps_its_promises_whatever_befalls_it
	$(BIN)/coverage report --skip-covered

test-kills: KILLS ?= 200
test-kills: $(VENV)/test  ## jobs that have faults at random; KILLS=200 times, SEED=1, KINDS=worker,driver,hung,link,..., SPARK=1
	$(BIN)/python -m tests.job_kills --kills $(KILLS) --seed $(or $(SEED),1) $(if $(KINDS),--kinds $(KINDS)) $(if $(SPARK),--spark)

test-soak: $(VENV)/test  ## a job that loses a process every EVERY=5 seconds, for TIME=600: the slopes of all that might grow
	$(BIN)/python -m tests.job_soak --seconds $(or $(TIME),600) --every $(or $(EVERY),5)

test-sinks: $(SERVERS)  ## jobs that write to real targets, all of which are killed; KILLS=50 RESTARTS=20 TARGETS="kafka ..."
	$(BIN)/python -m tests.target_kills --kills $(or $(KILLS),50) --restarts $(or $(RESTARTS),20) $(if $(TARGETS),--targets $(TARGETS))

test-servers: $(SERVERS)  ## the tests against real servers, which they start themselves
	EPOCHCUT_PROFILE=$(PROFILE) $(BIN)/python -m pytest -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder -m servers $(ARGS)

test-specs: $(VENV)/test .servers/tlc.stamp  ## histories of the protocols are checked by TLC against specifications in TLA+
	EPOCHCUT_PROFILE=$(PROFILE) $(BIN)/python -m pytest -m specs tests/specs $(ARGS)

# The model checker of TLA+, by Maven; its version is in the file it depends on.
.servers/tlc.stamp: tests/specs/tlc.pom.xml
	rm -rf .servers/tlc
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.servers/tlc
	@touch $@

# An S3 server whose conditional puts are atomic, from its source; its version is pinned in the file it depends on.
.servers/versitygw: tests/servers/versitygw.version
	GOBIN=$(CURDIR)/.servers CGO_ENABLED=0 go install -trimpath -ldflags='-s -w' \
		github.com/versity/versitygw/cmd/versitygw@$$(cat $<)
	@touch $@

# The jars of a Kafka broker, by Maven; their versions are in the file it depends on.
.servers/kafka.stamp: tests/servers/kafka.pom.xml
	rm -rf .servers/kafka
	mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.servers/kafka
	@touch $@

# Spark's own source for Kafka, by Maven in the same way.
.servers/spark-kafka.stamp: tests/servers/spark_kafka.pom.xml
	rm -rf .servers/spark-kafka
	mvn -q -B -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.servers/spark-kafka
	@touch $@

# The jars of HDFS and YARN, by Maven in the same way.
.servers/hadoop.stamp: tests/servers/hadoop.pom.xml
	rm -rf .servers/hadoop
	mvn -q -B -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.servers/hadoop
	@touch $@

# The jars of Pravega, with ZooKeeper and BookKeeper, by Maven in the same way.
.servers/pravega.stamp: tests/servers/pravega.pom.xml
	rm -rf .servers/pravega
	mvn -q -B -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.servers/pravega
	@touch $@

# Debian's PostgreSQL, whose cluster is not needed, as tests make their own.
.servers/postgres.stamp:
	@mkdir -p .servers
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || { \
		[ "$$(id -u)" = 0 ] || { echo "PostgreSQL is not installed: run 'apt-get install postgresql' as root" >&2; exit 1; }; \
		mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql; }
	@touch $@

# Debian's Prometheus, unpacked here: installed, it would begin to serve this machine.
.servers/prometheus.stamp:
	rm -rf .servers/prometheus
	@mkdir -p .servers/prometheus
	cd .servers/prometheus && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; }
	dpkg -x .servers/prometheus/prometheus_*.deb .servers/prometheus
	@rm .servers/prometheus/prometheus_*.deb
	@touch $@

# Debian's Chromium, which looks at the page of a job.
.servers/chromium.stamp:
	@mkdir -p .servers
	@command -v chromium >/dev/null || { \
		[ "$$(id -u)" = 0 ] || { echo "Chromium is not installed: run 'apt-get install chromium' as root" >&2; exit 1; }; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }
	@touch $@

fuzz: $(VENV)/test  ## decoders get what is almost right for TIME=10 minutes of processor time; SEED=1, ONLY="manifests" for one
	$(BIN)/python -m tests.fuzz --minutes $(or $(TIME),10) --seed $(or $(SEED),1) $(if $(ONLY),--decoder "$(ONLY)")

lint: $(VENV)/lint  ## ruff and mypy --strict; mypy and pyright on the programs of pages, help and examples
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.typed_programs

bench: $(VENV)/test  ## figures as JSON lines; ONLY="coordinator" for some
	@$(BIN)/python -m tests.bench $(ONLY)

compare: $(VENV)/test  ## recovery schemes beside each other, a worker killed in each, about 8 minutes: build/compare/report.html; PROGRAM=... PLAN=small
	$(BIN)/recovery compare $(or $(PROGRAM),recovery.comparison.programs:totals) --plan $(or $(PLAN),small) --folder $(or $(FOLDER),build/compare)

pictures: $(VENV)/servers .servers/chromium.stamp  ## renew the pictures of a job's page
	EPOCHCUT_PICTURES=$(CURDIR)/recovery/telemetry/pictures $(BIN)/python -m pytest -n0 -m servers \
		tests/servers/test_page_in_a_browser.py -k pictured

clean:  ## forget what was built and installed
	rm -rf .venv .venv-* .servers build .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv --clear $(VENV)

# One stamp per set of extras, so that a command installs no more than it uses.
$(VENV)/demo: EXTRAS = spark
$(VENV)/test: EXTRAS = test
$(VENV)/servers: EXTRAS = servers
$(VENV)/lint: EXTRAS = lint
$(VENV)/demo $(VENV)/test $(VENV)/servers $(VENV)/lint: $(VENV)/bin/python setup.cfg pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

.PHONY: help demo test coverage test-kills test-soak test-sinks test-servers test-specs fuzz lint bench compare pictures clean
.DEFAULT_GOAL := help
