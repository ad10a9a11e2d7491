# Every target is safe to repeat. Settings come from the environment or the command line,
# for example `make run STORE=redis://127.0.0.1:6379` or `make demo PROFILE=dev`.

# Test runs and demos edit little between builds, and release builds would otherwise start over.
export CARGO_INCREMENTAL ?= 1
TARGET = $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

.DEFAULT_GOAL := help
.PHONY: help setup run demo test quick lint format kubernetes packages test-packages units test-systemd audit bench bench-check bench-peers bench-scale fuzz soak mutants

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## install what building needs and the machine lacks (the other targets do it themselves)
	@tests/setup.sh build

run: setup ## bring the gateway up, with a simulator for vendors without a key, until interrupted
	@tests/run.sh

demo: setup ## real requests to simulated vendors, their charges, the statement, then the console
	@tests/demo.sh

test: ## every test, the vendors' own SDKs against the binary, short forms of the soak machines
	@tests/setup.sh test
	tests/clients/install & installed=$$!; cargo build --all-targets; built=$$?; \
	wait $$installed && exit $$built
	@# Nextest starts itself once more for each test, to be safe from a stop between fork and exec.
	@if cargo nextest --version >/dev/null 2>&1; then export NEXTEST_DOUBLE_SPAWN=0; set -x; \
	tests/with_redis.sh cargo nextest run; \
	else set -x; tests/with_redis.sh cargo test --all-targets; fi
	cargo test --doc
	TOLLGATE_BIN=$(or $(TOLLGATE_BIN),$(TARGET)/debug/tollgate) tests/lint/kubernetes
	@# The machines judge no times and mostly wait, so the client tests have the processors meanwhile.
	@mkdir -p $(TARGET); set -x; python3 tests/soak/run.py >$(TARGET)/soak.log 2>&1 & soak=$$!; \
	trap 'kill $$soak 2>/dev/null' INT TERM; set -x; tests/clients/run; tested=$$?; \
	wait $$soak; held=$$?; set +x; cat $(TARGET)/soak.log; [ $$tested = 0 ] && [ $$held = 0 ]

quick: setup ## under a minute when warm: formatting, clippy, the house, and the tests that start nothing
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	cargo test --quiet --lib --test pure

lint: setup format ## formatting, clippy, rustdoc, licences and sources of crates
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps

format: kubernetes units ## formatting, licences and sources of crates, manifests, units: no build
	cargo fmt --check
	cargo fmt --check --manifest-path tests/fuzz/Cargo.toml
	tests/deny.sh lint

kubernetes: ## render and check the manifests of Kubernetes; with TOLLGATE_BIN their settings, too
	@tests/setup.sh kubernetes
	tests/lint/kubernetes

packages: ## a Debian package, a container image and a list of crates in var/packages; needs root
	@tests/setup.sh packages
	packaging/build

test-packages: ## install the Debian package in a clean root, run the image, sell, upgrade; needs root
	@tests/setup.sh packages
	cargo build --bin tollgate --example sim
	tests/packages/run

units: ## check the units of systemd, and how exposed they leave the process
	@tests/setup.sh units
	tests/lint/systemd

test-systemd: ## the unit under a real systemd in a root of its own; SUITE (trixie), root only
	@tests/setup.sh packages
	cargo build --bin tollgate --example sim
	TOLLGATE_BIN=$(or $(TOLLGATE_BIN),$(TARGET)/debug/tollgate) \
	  TOLLGATE_SIM=$(or $(TOLLGATE_SIM),$(TARGET)/debug/examples/sim) tests/packages/systemd/run

audit: setup ## what is known to be wrong with our crates; exit 2 of make, 3 of the script: no database
	tests/deny.sh audit

bench: ## compare with no proxy, nginx, a bare pingora proxy and installed peers; the rooms' own benches
	@tests/setup.sh bench
	cargo build --release --bin tollgate --example sim --example bare_pingora
	python3 benches/run.py
	cargo bench --bench rooms

bench-check: ## count the instructions of a fixed set of work; fails above 5 % growth
	@tests/setup.sh count
	cargo build --release --bin tollgate --example sim
	python3 benches/check.py

bench-peers: ## install other gateways below var/peers, for make bench to compare with, too
	@tests/setup.sh peers
	benches/peers/install

bench-scale: ## the same with many accounts, charges, streams, gateways, shards; PARTS="nodes redis"
	@tests/setup.sh bench
	cargo build --release --bin tollgate --example sim --example bare_pingora
	python3 benches/scale.py $(PARTS)

fuzz: setup ## run every fuzz target for FUZZ_SECONDS (default 60) each, on the stable toolchain
	@tests/fuzz/run.sh

soak: ## machines that try to break a release build, an hour in all; MACHINES="money crowd", SEED=7
	@tests/setup.sh test
	cargo build --release --bin tollgate --example sim
	TOLLGATE_BIN=$(CURDIR)/target/release/tollgate TOLLGATE_SIM=$(CURDIR)/target/release/examples/sim \
	  python3 tests/soak/run.py --long --seed $(or $(SEED),1) $(MACHINES)

mutants: setup ## change the rooms of money in every way; name the changes that no test notices
	@tests/mutants/run.sh
