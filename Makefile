# Two commands do everything on a fresh Debian machine with Python 3.11+: `make run` and `make test`. `make test-deps` installs the
# system's packages that only tests need. Each target sets up its requirements once, and the stamps in .venv record that.

# The interpreter for a new .venv. If empty, deploy/make-venv takes the best one and shows why.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
RUNTIME := $(VENV)/runtime.stamp
DEV := $(VENV)/dev.stamp
DEV_FILES := certs-dev/fingerprints.json policy-dev.toml

# `run`, `demo` and `bench` use a wheel of the tree, with its core compiled where there is a C compiler. Tests, lint and all other
# targets use the tree, which is never compiled.
MAXAM_CORE ?= auto
INSTALLED := $(VENV)/maxam-$(MAXAM_CORE).stamp
# The first `run` does not wait for the compiler: it starts the interpreted core, and the next `run` installs the wheel that was built
# meanwhile. `demo`, in another terminal, leaves what is installed. $(call started,FILE) is INSTALLED once that or FILE is there.
FIRST := $(VENV)/maxam-interpreted.stamp
started = $(if $(filter auto,$(MAXAM_CORE)),$(if $(wildcard $(INSTALLED) $1),$(INSTALLED),$(FIRST)),$(INSTALLED))
RUN := $(call started,$(VENV)/wheel-auto/stamp)
# No process imports the tree because it was started here. It replaces make's shell, so that a signal that ends make ends it too.
FROM_WHEEL := PYTHONSAFEPATH=1 exec
# The benchmarks are in the tree and measure the wheel: started by its path, the program finds `tests` after what is installed.
BENCHMARKS := $(FROM_WHEEL) $(BIN)/python tests/benchmarks/__main__.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help reference console-bench refined-bench run demo check check-core check-rooms test test-deps fuzz soak flood network-test tls-scan corruption-test disk-curve kill-test coverage simulate simulate-bridges simulate-cluster simulate-fronts lint bench compare grow pipeline pipeline-bench pack wheel lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'

run: $(RUN) $(DEV_FILES) ## the gateway in the foreground on 127.0.0.1:61614, with its journal under var/
	$(if $(filter-out $(INSTALLED),$(RUN)),@deploy/compile-later $(VENV))
	$(FROM_WHEEL) $(BIN)/maxam-gateway --config maxam-dev.toml

demo: $(call started) $(DEV_FILES) ## a venue of machines, an eager and a slow subscriber, after `make run` (DEMO_ARGS="--machines 50")
	$(FROM_WHEEL) $(BIN)/python -m maxam.demo $(DEMO_ARGS)

.PHONY: demo-estate
demo-estate: $(INSTALLED) ## three venues, a centre and the bridges between them; a line is cut for a while (ESTATE_ARGS="--cut-s 60")
	$(FROM_WHEEL) $(BIN)/python -m maxam.demo.estate $(ESTATE_ARGS)

.PHONY: demo-web
demo-web: $(INSTALLED) ## a venue floor in the browser (gateway, machines, a page at one address); needs Node.js (FLOOR_ARGS="--machines 60")
	deploy/build-floor var/floor-page
	$(FROM_WHEEL) $(BIN)/python docs/examples/floor/demo.py --page var/floor-page $(FLOOR_ARGS)

.PHONY: demo-cluster
demo-cluster: $(INSTALLED) ## three gateways on three nodes of etcd; the key k kills the leader (CLUSTER_ARGS="--kills 3 --json")
	$(FROM_WHEEL) $(BIN)/python -m maxam.demo.cluster $(CLUSTER_ARGS)

check: $(DEV) ## lint, unit and property tests without the slow ones, interpreted: below a minute
	$(MAKE) --no-print-directory --jobs=3 --output-sync=target lint check-core check-rooms

# Two processes, each of which imports only what its part needs. PYTEST_ARGS may name tests of one of them.
CORE_TESTS := tests/properties $(addprefix tests/unit/,avro broker cluster front journal selectors stomp)
check-core: TESTS = $(CORE_TESTS)
check-rooms: TESTS = tests/docs $(filter-out $(CORE_TESTS) %/__pycache__,$(wildcard tests/unit/*))
check-core check-rooms: $(DEV)
	$(BIN)/python -m pytest -q -m "not slow and not interop" $(TESTS) $(PYTEST_ARGS)$(if $(PYTEST_ARGS), || [ $$? = 5 ])

test: $(DEV) ## all tests, those of the core interpreted and compiled, third-party clients included (PYTEST_ARGS="-k glob" for some)
	deploy/install-bench-peers --check
	deploy/install-test-clients --check
	deploy/test-cores $(PYTEST_ARGS)

# These install nothing outside .venv, not even as root.
check check-core check-rooms lint test: export INSTALL_NOTHING := 1

test-deps: ## install what tests need of the system: STOMP clients, brokers, browser, compiler (as root, on Debian)
	deploy/install-bench-peers
	deploy/install-test-clients

kill-test: $(DEV) ## kill -9 the gateway under load again and again (KILLS=200 takes some ten minutes; FRONTS=2 kills fronts too)
	$(BIN)/python -m tests.faults.kill_harness --kills $(or $(KILLS),200) $(if $(FRONTS),--fronts $(FRONTS))

.PHONY: etcd-test etcd-bench
etcd-bench: $(INSTALLED) $(DEV) ## the log of a cluster on three etcd nodes: appends, failover, sizes (ETCD_ARGS="--minutes 30")
	$(BENCHMARKS) etcd $(ETCD_ARGS)

.PHONY: cluster-compare cluster-large
cluster-compare: $(INSTALLED) $(DEV) ## a cluster beside NATS JetStream and RabbitMQ's quorum queues, three nodes each (COMPARE_ARGS="--runs 5")
	deploy/build-nats >/dev/null
	$(BENCHMARKS) cluster $(COMPARE_ARGS)

cluster-large: $(INSTALLED) $(DEV) ## three gateways with a million topics: promotion, an empty member that joins, lag (LARGE_ARGS="--topics 100000")
	$(BENCHMARKS) large-cluster $(LARGE_ARGS)

etcd-test: $(DEV) ## kill the leader of three etcd nodes under a writer and a reader (KILLS=20 takes some two minutes)
	KILLS=$(or $(KILLS),20) $(BIN)/python -m pytest -q -s tests/cluster/test_etcd.py

.PHONY: cluster-test failover-table partition-test upgrade-test
cluster-test: $(DEV) ## kill, freeze and hand over gateways and etcd of a cluster under load (KILLS=200 takes some three hours; CLUSTER_ARGS="--lease 1.5")
	$(BIN)/python -m tests.cluster.kill_harness --kills $(or $(KILLS),20) $(CLUSTER_ARGS)

failover-table: $(DEV) ## kill the leader of a cluster under load with leases of 3, 2 and 1 s, and measure the wait (KILLS=200; CLUSTER_ARGS="--leases 2")
	$(BIN)/python -m tests.cluster.failover --kills $(or $(KILLS),20) $(CLUSTER_ARGS)

partition-test: $(DEV) ## cut gateways, etcd and clients of a cluster off from each other under load (CUTS=200 takes some hour)
	$(BIN)/python -m tests.cluster.partitions --cuts $(or $(CUTS),24) $(CLUSTER_ARGS)

upgrade-test: $(DEV) ## upgrade a cluster under load from the release of a bundle, member by member, and back (OLD=dist/maxam-...-bundle.tar.gz)
	$(BIN)/python -m tests.cluster.upgrade $(OLD) $(CLUSTER_ARGS)

.PHONY: fault-sweep
fault-sweep: $(DEV) ## fail the disk of a real gateway at each of its first calls (N=2000 takes an hour; FAULT_ARGS="--step 20")
	$(BIN)/python -m tests.faults.fault_sweep --calls $(or $(N),2000) $(FAULT_ARGS)

corruption-test: $(DEV) ## damage a journal at random and repair it (FAULTS=1000 takes half a minute)
	$(BIN)/python -m tests.faults.corruption --faults $(or $(FAULTS),1000)

disk-curve: $(INSTALLED) $(DEV) ## what a journal takes on the disk under steady updates, four minutes (docs/plots/disk.svg)
	$(BENCHMARKS) disk --plot docs/plots/disk.svg

MINUTES ?= 10
fuzz: $(DEV) ## inputs of unauthenticated clients, operators and disks, led by coverage, and a live gateway (MINUTES=60)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

.PHONY: api-fuzz api-bench
api-fuzz: $(DEV) ## schemathesis against the admin API of a real gateway (EXAMPLES=500 of each route takes some 20 minutes)
	$(BIN)/python -m tests.fuzz.admin_api $(or $(EXAMPLES),100)

api-bench: $(INSTALLED) ## how long each listing of the admin API holds the event loop (API_ARGS="--topics 1000000 --json")
	$(BENCHMARKS) holds $(API_ARGS)

soak: $(INSTALLED) $(DEV) ## 1,000 connections come and go for as long as you like (MINUTES=60 SOAK_ARGS="--plot docs/plots/soak.svg")
	$(BIN)/python -m tests.soak --installed --minutes $(MINUTES) $(SOAK_ARGS)

flood: $(DEV) ## 500 hostile unauthenticated clients, 100 subscribers that never read, and their effect on other clients
	$(BIN)/python -m tests.faults.flood

.PHONY: bridge-test bridge-figures bridge-thin-line
bridge-test: $(DEV) ## a bridge between real gateways whose line is cut again and again under load (CUTS=100 takes some minutes)
	CUTS=$(or $(CUTS),100) $(BIN)/python -m pytest -q tests/interop/bridge/test_process.py

bridge-figures: $(DEV) ## how fast a bridge makes good an outage of an hour, and its rate over a line of 50 ms
	$(BIN)/python -m tests.interop.bridge.figures

bridge-thin-line: $(DEV) ## a bridge over a line of 1 Mbit/s that loses 2 % of all packets (LINE_ARGS="--seconds 60 --window 20")
	$(BIN)/python -m tests.interop.bridge.thin_line $(LINE_ARGS)

.PHONY: observer-lag observer-line
observer-lag: $(INSTALLED) ## the lag of an observer after a publisher at full speed, and a comparison of their journals (LAG_ARGS="--rate 100000")
	$(BENCHMARKS) observer $(LAG_ARGS)

observer-line: $(DEV) ## an observer over a line of 2 % loss with three outages, promoted (LINE_ARGS="--seconds 3600")
	$(BIN)/python -m tests.faults.observer_line $(LINE_ARGS)

.PHONY: insider-search
insider-search: $(DEV) ## frames of one principal that cost the broker most, found by search (MINUTES=60)
	$(BIN)/python -m tests.faults.insider_search --minutes $(MINUTES)

network-test: $(DEV) ## resets in mid-frame, silence, a dead peer
	$(BIN)/python -m tests.faults.network

tls-scan: $(DEV) ## sslscan and testssl.sh against both listeners
	$(BIN)/python -m tests.faults.tls_scan

.PHONY: console-measure console-pictures
console-measure: $(DEV) ## how fast the web console is with 100,000 topics and 5,000 updates/s, in a real browser
	$(BIN)/python -m tests.console measure

console-pictures: $(DEV) ## the pictures of docs/operate/console.md, taken while the demo plays
	$(BIN)/python -m tests.console pictures docs/pictures

.PHONY: floor-pictures
floor-pictures: $(DEV) ## the pictures of the README: the venue floor, light and dark
	$(BIN)/python -m tests.web docs/pictures

coverage: $(DEV) ## all tests, with branch coverage
	$(BIN)/python -m pytest --cov --cov-report=term $(PYTEST_ARGS)

SEEDS ?= 1000
simulate: $(DEV) ## the whole broker on a simulated disk, clock and network, on all processors (SEEDS=10000; JOBS=1)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(JOBS),--jobs $(JOBS))

simulate-bridges: $(DEV) ## the same of venues, a centre and the bridges between them (SEEDS=10000; JOBS=1)
	$(BIN)/python -m tests.simulation --kinds bridges --seeds $(SEEDS) $(if $(JOBS),--jobs $(JOBS))

simulate-cluster: $(DEV) ## the same of the members of a cluster, their gateways, clients and log (SEEDS=10000; JOBS=1)
	$(BIN)/python -m tests.simulation --kinds cluster cluster-venue --seeds $(SEEDS) $(if $(JOBS),--jobs $(JOBS))

simulate-fronts: $(DEV) ## the same of a broker with 0, 1 and 3 fronts (SEEDS=10000; JOBS=1)
	$(BIN)/python -m tests.simulation --kinds fronts --seeds $(SEEDS) $(if $(JOBS),--jobs $(JOBS))

.PHONY: conformance
conformance: $(DEV) ## certify our client libraries with maxam-conformance, and find broken ones (NAMES="python typescript-web")
	$(BIN)/python -m tests.conformance $(NAMES)

reference: $(DEV) ## write docs/reference/ from the commands and the admin API
	$(BIN)/python -m tests.docs.reference

lint: $(DEV) ## rules, format, types, floors, prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.prose
	deploy/lint-typescript

bench: $(INSTALLED) ## load and latency over mutual TLS (BENCH_ARGS="--only one-to-one")
	$(BENCHMARKS) suite $(BENCH_ARGS)

compare: $(INSTALLED) $(DEV) ## the same beside RabbitMQ and ActiveMQ, after `make test-deps` (COMPARE_ARGS="--chart charts")
	$(BENCHMARKS) compare $(COMPARE_ARGS)

grow: $(INSTALLED) $(DEV) ## cost against topics, subscriptions, connections, body size, subscribers (GROW_ARGS="--plots docs/plots")
	$(BENCHMARKS) grow $(GROW_ARGS)

.PHONY: estate-memory
estate-memory: $(INSTALLED) ## memory of a centre with 1.8 million topics of 1,000 bridged venues (ESTATE_ARGS="--topics 100000 --venues 50")
	$(BENCHMARKS) estate $(ESTATE_ARGS)

.PHONY: web-bench
web-bench: $(INSTALLED) ## memory of idle WebSockets, and processor time for each of their MESSAGEs (WEB_ARGS="--sockets 1000")
	$(BENCHMARKS) web $(WEB_ARGS)

.PHONY: web-load
web-load: $(DEV) ## how soon a page shows 50 values on a slow line, in a real browser (LOAD_ARGS="--round-trip-ms 60 --kbit 9000")
	$(BIN)/python -m tests.web.load $(LOAD_ARGS)

refined-bench: $(INSTALLED) ## bytes of resuming, cost of selectors, exactness of intervals (REFINED_ARGS="--only selectors")
	$(BENCHMARKS) refined $(REFINED_ARGS)

console-bench: $(INSTALLED) ## what ten tabs of the console cost, and how fast they are, with 100,000 topics (CONSOLE_ARGS="--seconds 120")
	$(BENCHMARKS) console $(CONSOLE_ARGS)

pipeline: $(INSTALLED) $(DEV) ## .venv/bin/maxam-pipeline, with Spark and a Java for machines without one (docs/analyse/pipeline.md)
	$(FROM_WHEEL) $(BIN)/maxam-pipeline --version

pipeline-bench: $(INSTALLED) $(DEV) ## jobs of the pipeline on 10 and 20 million changes, 9 GB of disk (PIPELINE_ARGS="--records 1000000")
	$(BENCHMARKS) pipeline $(PIPELINE_ARGS)

.PHONY: pipeline-compare
pipeline-compare: $(INSTALLED) $(DEV) ## latest and history beside DuckDB and plain Spark, 2 GB of disk (TABLES_ARGS="--duckdb venv/bin/python")
	$(BENCHMARKS) pipeline-compare $(TABLES_ARGS)

pack: $(INSTALLED) $(DEV) ## dist/: what a Spark cluster needs of maxam (docs/analyse/pipeline-cluster.md)
	$(FROM_WHEEL) $(BIN)/python deploy/pack_pipeline.py dist

wheel: $(INSTALLED) ## dist/maxam-*.whl, for machines of this kind without a C compiler (MAXAM_CORE=compiled insists on one here)
	mkdir -p dist && cp $(VENV)/wheel/maxam-*.whl dist/ && ls dist/maxam-*.whl

.PHONY: bundle
bundle: wheel ## dist/maxam-*-bundle.tar.gz: installs a gateway on machines without network (docs/operate/deployment.md)
	$(BIN)/python deploy/make_bundle.py $(VENV)/wheel/maxam-*.whl dist

# A release insists on a compiled core; MAXAM_CORE=interpreted makes one for machines without a C compiler.
.PHONY: release release-check
.PHONY: deb
deb: bundle ## dist/maxam_*.deb: the bundle as a Debian package (docs/operate/deployment.md)
	deploy/make-deb "$$(ls -t dist/maxam-*-bundle.tar.gz | head -n 1)" dist

.PHONY: etcd-archive
etcd-archive: ## dist/maxam-etcd-*.tar.gz: installs one node of the etcd of a cluster (needs Go)
	deploy/make-etcd-archive

release: $(RUNTIME) ## dist/maxam-<version>/ of the last commit: wheel, sdist, bundle, deb, bill of materials, checksums (SIGN_KEY=key.pem signs them)
	$(if $(filter command environment,$(origin MAXAM_CORE)),MAXAM_CORE=$(MAXAM_CORE),MAXAM_CORE=compiled) $(BIN)/python deploy/make_release.py dist

release-check: $(RUNTIME) ## make the release twice, in two clones, and compare every byte
	deploy/release-check $(BIN)/python

lock: ## resolve the newest dependencies into requirements*.lock (needs uv)
	uv pip compile pyproject.toml --universal --python-version 3.11 --upgrade --generate-hashes --no-annotate --no-strip-extras --quiet \
	  --custom-compile-command "make lock" --group build --extra gateway --extra admin --extra cluster --output-file requirements.lock
	uv pip compile pyproject.toml --universal --python-version 3.11 --upgrade --generate-hashes --no-annotate --no-strip-extras --quiet \
	  --custom-compile-command "make lock" --group dev --extra all --constraint requirements.lock \
	  --output-file requirements-dev.lock

clean: ## remove all that the targets made, but the journal under var/
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*
	rm -rf $(addprefix maxam/client/typescript/,node_modules build dist)
	rm -rf tests/interop/clients/node_modules policy-dev.toml certs-dev/*.pem certs-dev/*.key certs-dev/*.json
	find maxam tests -name __pycache__ -prune -exec rm -rf {} +

# Build tools come first, from the lock, so that nothing that follows is built with tools from elsewhere.
$(RUNTIME): requirements.lock
	@echo "Setting up $(VENV). This happens once."
	test -x $(BIN)/pip || deploy/make-venv $(VENV) $(PYTHON)
	$(PIP) install --require-hashes --requirement requirements.lock
	touch $@

$(DEV): requirements-dev.lock $(RUNTIME)
	$(PIP) install --require-hashes --no-build-isolation --use-pep517 --requirement requirements-dev.lock
	touch $@

# One make waits for another that builds the same wheel, such as the one in the background of `run`, and takes that. Without flock, as
# on macOS, both build it.
ALONE = $(if $(shell command -v flock),flock $(VENV)/wheel-$*.lock)
.PRECIOUS: $(VENV)/wheel-%/stamp
$(VENV)/wheel-%/stamp: $(RUNTIME) pyproject.toml deploy/build_backend.py $(shell find maxam -name '*.py' -o -path 'maxam/api/console/*' -type f)
	@echo "Building maxam.$(if $(filter-out interpreted,$*), A C compiler takes about a minute for its core.)"
	@$(ALONE) sh -ec 'test -e $@ && test -z "$$(find $? -newer $@ -print -quit)" && exit; set -x; rm -rf $(@D); \
	  MAXAM_CORE=$* $(BIN)/python deploy/build_backend.py $(@D); touch $@'

# One stamp records the requested core, another the core that was built. A later request for that core builds nothing.
$(VENV)/maxam-%.stamp: $(VENV)/wheel-%/stamp
	rm -rf $(VENV)/maxam-*.stamp $(VENV)/wheel
	$(PIP) install --no-deps --force-reinstall $(VENV)/wheel-$*/maxam-*.whl
	ln -s wheel-$* $(VENV)/wheel
	touch $@ $(VENV)/maxam-$$($(BIN)/python -I -m maxam.compiled).stamp

$(DEV_FILES) &: certs-dev/make-certs certs-dev/policy-dev.template.toml | $(RUNTIME)
	PYTHONPATH=. $(BIN)/python -B certs-dev/make-certs
