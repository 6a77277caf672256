# The token bucket module for Redis and Valkey. `make` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PORT ?= 6379
SERVER ?=
# The address of the repository, like https://github.com/owner/tokenbucket, and whom a Debian package names: name <address>.
export REPOSITORY ?=
export MAINTAINER ?=
MODULE := $(CURDIR)/target/release/libtokenbucket.so
ENGINES := $(CURDIR)/target/engines

# `make test` runs on these: Debian's Redis, the newest Redis, the newest Valkey.
NEWEST_REDIS := redis-8.10.2
NEWEST_VALKEY := valkey-9.1.2
DEBIAN_REDIS := redis-7.0.15
TEST_ENGINES := $(DEBIAN_REDIS) $(NEWEST_REDIS) $(NEWEST_VALKEY)
# Chaos also runs on the oldest Redis. It has no absolute expiries, and its periodic work follows the clock that the test moves.
CHAOS_ENGINES := redis-6.0.16 $(TEST_ENGINES)
ALL_ENGINES = $(shell scripts/engines.sh --list)

CORE := -p tokenbucket-core
PROJECT_TESTS := --test version --test make --test blocks
SERVER_TESTS := --test server --test procedures
# Shows what cargo compiles, and a dot for each test. Cargo looks for the slots of a make that runs two targets, and finds none.
cargo_test = MAKEFLAGS= cargo test $(1) -- --quiet $(2)
# Most tests wait for servers and use little CPU.
TEST_THREADS ?= 6

# bindgen needs the compiler's headers where only libclang is installed, without clang.
export BINDGEN_EXTRA_CLANG_ARGS ?= -isystem $(shell cc -print-file-name=include 2>/dev/null)

# Writes the day of a run that passed into the documentation, if RECORD is set. A target that others call as a part is no run.
record = @$(if $(filter 0,$(MAKELEVEL)),$(if $(RECORD),sed -i 's/^\(| `make $@` |\) [0-9-]* /\1 '"$$(date -u +%F)"' /' docs/explanation/guarantees.md))
RECORD ?=

say = @printf '\n\033[1m== %s\033[0m\n' $(1)

# What `make help` shows first. The headings of the rest are the lines that begin with "#@".
EVERY_DAY := run test test-pure test-server lint

#@ Start
.PHONY: help
help: ## List the targets
	@echo 'make TARGET [VARIABLE=value …]'
	@awk -v every_day='$(EVERY_DAY)' -f scripts/help.awk Makefile Makefile | expand -t 22
	@echo
	@echo 'Variables: PORT=6379 for run; SERVER=/path/to/redis-server or valkey-server for run and test.'

.PHONY: run
run: check-run run-tools ## Build the module and start a server with it in the foreground (PORT=6379)
	@$(MAKE) --no-print-directory build
	@scripts/run.sh '$(PORT)' '$(MODULE)' $(if $(SERVER),'$(SERVER)')

# Runs before anything is installed or built, so that a typo fails at once.
.PHONY: check-run
check-run: check-server
	@scripts/check.sh port '$(PORT)'

.PHONY: check-server
check-server:
	@$(if $(SERVER),scripts/check.sh server '$(SERVER)')

# All at once, so that what is missing is one list. As a target of its own for the reason below.
.PHONY: run-tools
run-tools: check-run
	@scripts/install.sh cargo cc libclang $(if $(SERVER),,redis)

# Every target that builds depends on this. make evaluates the export above when it starts a recipe, and needs cc by then.
.PHONY: build-tools
build-tools:
	@scripts/install.sh cargo cc libclang

.PHONY: build
build: build-tools ## Build the module: target/release/libtokenbucket.so
	$(call say,'building the module')
	@echo 'the last crate, tokenbucket, takes about half a minute'
	@cargo build --release --target-dir target || { scripts/check.sh network; exit 1; }
	@echo 'built $(MODULE)'

.PHONY: clean
clean: ## Remove all build outputs and downloads
	cargo clean

.PHONY: test
test: check-server build-tools ## Test everything on Redis 7.0, the newest Redis and the newest Valkey (or SERVER=path alone)
	@$(MAKE) --no-print-directory -j2 build compile-tests
ifdef SERVER
	@$(MAKE) --no-print-directory -j2 test-pure test-server SERVER='$(SERVER)'
else
	@$(MAKE) --no-print-directory engines NAMES='$(TEST_ENGINES)'
	@$(MAKE) --no-print-directory -j2 test-pure test-servers
endif
	$(call say,'all tests passed')
	$(call record)

.PHONY: test-long
test-long: build ## Compare with redis-cell, count instructions, and run a minute of chaos and of fuzzing (about 7 minutes)
	@scripts/install.sh valgrind c++
	$(call say,'testing the benchmarks')
	@$(call cargo_test,-p tokenbucket-bench)
	@$(MAKE) --no-print-directory test-redis-cell
	@$(MAKE) --no-print-directory -j2 guard chaos-and-fuzz CHAOS_SECONDS=60 FUZZ_SECONDS=repeat
	$(call record)

# Beside the pure tests: these mostly wait.
.PHONY: test-servers
test-servers:
	@for engine in $(TEST_ENGINES); do \
		$(MAKE) --no-print-directory test-server SERVER='$(ENGINES)/'$$engine/server NAME=$$engine; \
	done

# Beside the module, whose last crate leaves a processor idle.
.PHONY: compile-tests
compile-tests: build-tools
	$(call say,'compiling the tests')
	@cargo test --no-run $(CORE)
	@cargo test --no-run $(PROJECT_TESTS) $(SERVER_TESTS)

# The guard counts instructions on one processor. Chaos mostly waits, so it runs beside it, and then fuzz.
.PHONY: chaos-and-fuzz
chaos-and-fuzz:
	@$(MAKE) --no-print-directory chaos
	@$(MAKE) --no-print-directory fuzz

.PHONY: test-pure
test-pure: build-tools ## Test the code that needs no server: algorithm, parser, effects
	@scripts/install.sh dash ssh python git
	$(call say,'testing the algorithm and the parser')
	@$(call cargo_test,$(CORE))
	@$(call cargo_test,$(PROJECT_TESTS))

#@ The engine, more closely
.PHONY: test-states
test-states: build-tools ## Search all states of a queue of three clients (DEPTH=12 events)
	$(call say,'searching the states of the queue')
	@DEPTH=$(DEPTH) $(call cargo_test,$(CORE) --test pure,--nocapture states::)
DEPTH ?= 12

.PHONY: test-walks
test-walks: build-tools ## Try random calls that wait a hundred times as often as make test-pure does (CASES=25600)
	$(call say,'walking through waiting calls')
	@PROPTEST_CASES=$(CASES) $(call cargo_test,$(CORE) --test pure,turns::)
CASES ?= 25600

.PHONY: prove
prove: ## Prove the theorems about the core's arithmetic for all numbers, with Python and z3 (Rust 1.95)
	@scripts/install.sh cargo cc venv
	$(call say,'proving')
	@proofs/prove.sh

.PHONY: test-server
test-server: build-tools ## Test the module on one server, SERVER=path (TESTS=maxmemory:: is a test-name filter)
	@scripts/check.sh server '$(SERVER)'
	@scripts/install.sh dash redis
	$(call say,'testing on $(or $(NAME),$(SERVER))')
	@SERVER='$(SERVER)' MODULE='$(MODULE)' $(call cargo_test,$(SERVER_TESTS),--test-threads $(TEST_THREADS) $(TESTS))

.PHONY: test-pages
test-pages: build ## Test the documentation alone: its links, transcripts and procedures, on Redis 7.0
	@$(MAKE) --no-print-directory engines NAMES='$(DEBIAN_REDIS)'
	@scripts/install.sh dash redis ssh python git
	$(call say,'testing the pages')
	@$(call cargo_test,--test blocks --test version)
	@export SERVER='$(ENGINES)/$(DEBIAN_REDIS)/server' MODULE='$(MODULE)'; \
		$(call cargo_test,--test server,docs::) && $(call cargo_test,--test procedures)

#@ Fresh machines and releases
.PHONY: test-bare
test-bare: ## Run make run and make test on Debian 13 with only make and git, with Debian's own Rust (as root)
	$(call say,'running and testing in a bare Debian 13')
	@scripts/bare.sh trixie

.PHONY: test-container
test-container: ## Build the Dockerfile's images and run the servers, without an image registry (as root)
	$(call say,'building containers')
	@scripts/test-container.sh

.PHONY: dist
dist: ## Write the files of a release to target/dist: tarballs, Debian packages, checksums (VERSION=0.1.0)
	@scripts/dist.sh '$(VERSION)'

.PHONY: test-dist
test-dist: ## Build a release twice, compare, check its symbols, and install it on an old and a new Debian (as root)
	@$(MAKE) --no-print-directory dist VERSION='$(VERSION)'
	@scripts/test-dist.sh target/dist

.PHONY: address
address: ## Write REPOSITORY=https://example.org/owner/tokenbucket into this tree: Go's paths, metadata, links; once, before the first release
	@scripts/install.sh python
	@scripts/address.py write '$(REPOSITORY)'

.PHONY: release
release: ## Write everything a release has to target/release-VERSION, signed, and publish nothing (KEY=~/.ssh/id_ed25519; DRY=1 tries it)
	@scripts/release.sh '$(VERSION)' '$(or $(FOLDER),target/release-$(VERSION))'

# The section of a version in CHANGELOG.md, as the notes of its release.
.PHONY: notes
notes:
	@sed -n '/^## \[$(VERSION)\]/,/^## \[/{/^## /!p}' CHANGELOG.md

VERSION ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# $(call on_each,ARGUMENTS OF CARGO TEST,SERVERS): runs tests on each server and prints a table.
on_each = @scripts/install.sh redis && scripts/matrix.sh '$(ENGINES)' '$(MODULE)' '$(1)' $(2)

#@ Other servers and processors
.PHONY: matrix
matrix: build ## Test the module on every supported server (about 20 minutes)
	@$(MAKE) --no-print-directory engines
	$(call on_each,$(SERVER_TESTS) --test cluster -- --test-threads $(TEST_THREADS),$(or $(NAMES),$(ALL_ENGINES)))
	$(call record)

.PHONY: cluster-test
cluster-test: build ## Test clusters: resharding under load, failover after a crash
	@$(MAKE) --no-print-directory engines NAMES='$(TEST_ENGINES)'
	$(call on_each,--test cluster,$(TEST_ENGINES))

# $(call cross,RUST-TARGET,SERVERS): tests that target on those servers.
cross = @scripts/install.sh engines redis && scripts/test-cross.sh $(1) $(2) -- --test-threads $(TEST_THREADS) $(TESTS)

.PHONY: test-arm64
test-arm64: build ## Test the module for arm64 on Redis and Valkey, in an emulator
	$(call cross,aarch64-unknown-linux-gnu,redis-8.0.2 valkey-8.1.1)

.PHONY: test-s390x
test-s390x: build ## Test the module for s390x, which is big-endian, in an emulator
	$(call cross,s390x-unknown-linux-gnu,redis-8.0.2)

.PHONY: test-musl
test-musl: build ## Test the module for musl, as on Alpine, on a Redis and a Valkey compiled for musl
	$(call cross,x86_64-unknown-linux-musl,redis-7.0.15 valkey-8.1.1)

#@ Faults, attacks and mutants
.PHONY: chaos
chaos: build-tools ## Run random commands, crashes, failovers and settings for 30 minutes (CHAOS_SECONDS=1800)
	@$(MAKE) --no-print-directory engines NAMES='$(CHAOS_ENGINES)'
	$(call say,'building the module with its assertions')
	@cargo build --locked --target-dir target
	@for engine in $(CHAOS_ENGINES); do \
		printf '\n\033[1m== chaos on %s\033[0m\n' $$engine; \
		CHAOS_SECONDS=$$(( $(CHAOS_SECONDS) / $(words $(CHAOS_ENGINES)) )) SERVER='$(ENGINES)/'$$engine/server \
			MODULE='$(CURDIR)/target/debug/libtokenbucket.so' $(call cargo_test,--test chaos,--nocapture); \
	done
	$(call record)
CHAOS_SECONDS ?= 1800

.PHONY: engines
engines:
	@scripts/install.sh engines
	@scripts/engines.sh '$(ENGINES)' $(NAMES)

.PHONY: hostile
hostile: build ## Send 10^6 random commands and 10^5 hostile payloads to each of three servers (about 5 minutes)
	@$(MAKE) --no-print-directory engines NAMES='$(TEST_ENGINES)'
	$(call on_each,--test server -- hostile:: payloads::,$(TEST_ENGINES))
	$(call record)
hostile: export HOSTILE_COMMANDS := 1000000
hostile: export HOSTILE_PAYLOADS := 100000

.PHONY: valgrind
valgrind: build ## Run every command, file and replica under valgrind, on a server with libc's allocator
	@scripts/install.sh valgrind
	@$(MAKE) --no-print-directory engines NAMES=redis-6.2.14
	$(call say,'running under valgrind')
	@SERVER='$(ENGINES)/redis-6.2.14/server' MODULE='$(MODULE)' $(call cargo_test,--test valgrind,--nocapture)
	$(call record)

.PHONY: fuzz
fuzz: build-tools ## Fuzz the parsers, the effects and the arithmetic (FUZZ_SECONDS=60 for each of four targets, or =repeat)
	@scripts/install.sh c++
	$(call say,'fuzzing')
	@fuzz/run.sh $(FUZZ_SECONDS)
	$(call record)
FUZZ_SECONDS ?= 60

# Without optimisation a mutant compiles in a tenth of the time. More than 16 cases of each property find no more
# mutants. Two tests take longer than all others together: that of split buckets judges a page rather than the core, and that
# of all states judges the queue, which random walks judge too.
.PHONY: mutants
mutants: build-tools ## Change the core in 1,300 small ways; the pure tests must notice each (an hour or two)
	@command -v cargo-mutants >/dev/null || cargo install --locked cargo-mutants
	$(call say,'changing the algorithm and the parser')
	@CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 PROPTEST_CASES=16 PROPTEST_MAX_SHRINK_ITERS=0 cargo mutants $(CORE) --jobs 2 --output target $(MUTANTS) \
		-- --lib --test pure -- --skip split:: --skip states::
# Selects mutants: MUTANTS='--file core/src/top.rs', or --shard 0/8.
MUTANTS ?=

# For the Makefiles of examples, packages and the gate.
SERVER_AND_MODULE = SERVER='$(or $(SERVER),$(ENGINES)/$(DEBIAN_REDIS)/server)' MODULE='$(MODULE)'

#@ Packages, examples, gate and replay
.PHONY: examples
examples: build ## Set up and test every application under examples/
	@$(MAKE) --no-print-directory engines NAMES='$(DEBIAN_REDIS)'
	@$(MAKE) --no-print-directory -j2 --output-sync=line $(EXAMPLES:%=example-%)
# They mostly wait.
EXAMPLES := $(patsubst examples/%/Makefile,%,$(wildcard examples/*/Makefile))

example-%:
	$(call say,'examples/$*')
	@$(MAKE) --no-print-directory -C examples/$* test $(SERVER_AND_MODULE)

# The scenarios come first and alone: they build what the packages' tests build too, and some compare speeds. The packages'
# tests mostly wait, so two packages run at a time, Python's first, which take longest; what one line of a recipe prints stays
# together.
.PHONY: clients
clients: build ## Set up and test every client package under clients/ (about 11 minutes)
	@$(MAKE) --no-print-directory engines NAMES='$(DEBIAN_REDIS)'
	@$(MAKE) --no-print-directory client-conformance
	@$(MAKE) --no-print-directory -j2 --output-sync=line $(PACKAGES:%=client-%)
PACKAGES := python $(filter-out conformance python,$(patsubst clients/%/Makefile,%,$(wildcard clients/*/Makefile)))

client-%:
	$(call say,'client $*')
	@$(MAKE) --no-print-directory -C clients/$* test $(SERVER_AND_MODULE)

.PHONY: gate
gate: gate-tools ## Build the gate, for Envoy and other proxies
	@$(MAKE) --no-print-directory -C gate build

# Comes before the module is built, which would install an older Rust.
.PHONY: gate-tools
gate-tools:
	@MANIFEST=gate/Cargo.toml scripts/install.sh cargo cc

.PHONY: run-gate
run-gate: gate-tools build ## Start Redis, the gate, Envoy and Caddy before a backend, and say what to try (PORT=8000)
	@$(MAKE) --no-print-directory engines NAMES='$(DEBIAN_REDIS)'
	@$(MAKE) --no-print-directory -C gate run $(SERVER_AND_MODULE) $(if $(filter command line,$(origin PORT)),,PORT=8000)

.PHONY: test-gate
test-gate: gate-tools build ## Set up and test the gate behind real proxies: Envoy, Caddy, Traefik, nginx, HAProxy
	@$(MAKE) --no-print-directory engines NAMES='$(DEBIAN_REDIS)'
	@$(MAKE) --no-print-directory -C gate test $(SERVER_AND_MODULE)

.PHONY: bench-gate
bench-gate: gate-tools build ## Measure what the gate adds to a call, and its memory over 10^6 descriptors (about 4 minutes)
	@$(MAKE) --no-print-directory engines NAMES='$(DEBIAN_REDIS)'
	@$(MAKE) --no-print-directory -C gate bench $(SERVER_AND_MODULE)

.PHONY: replay
replay: replay-tools ## Build tokenbucket-replay, which reads access logs and shows which limit would have denied whom
	@$(MAKE) --no-print-directory -C replay build

.PHONY: replay-tools
replay-tools:
	@MANIFEST=replay/Cargo.toml scripts/install.sh cargo cc

.PHONY: test-replay
test-replay: replay-tools build ## Set up and test tokenbucket-replay on logs of real programs, and beside the module
	@$(MAKE) --no-print-directory engines NAMES='$(DEBIAN_REDIS)'
	@$(MAKE) --no-print-directory -C replay test $(SERVER_AND_MODULE)

.PHONY: bench-replay
bench-replay: replay-tools ## Measure the speed and memory of tokenbucket-replay beside awk (LINES=2000000)
	@$(MAKE) --no-print-directory -C replay bench

REDIS_CELL := $(CURDIR)/target/redis-cell/libredis_cell.so
THROTTLECRAB := $(CURDIR)/target/throttlecrab/throttlecrab-server
BENCH := cargo run --release -p tokenbucket-bench --

#@ Benchmarks
.PHONY: bench
bench: build ## Compare with scripts, counters and other modules (18 minutes; QUICK=1: one minute; ONLY=holding: one table)
	@scripts/install.sh engines protoc
	@$(MAKE) --no-print-directory engines NAMES='$(NEWEST_REDIS)'
	@benches/build-redis-cell.sh target/redis-cell
	@benches/build-throttlecrab.sh target/throttlecrab
	@SERVER='$(ENGINES)/$(NEWEST_REDIS)/server' MODULE='$(MODULE)' REDIS_CELL='$(REDIS_CELL)' THROTTLECRAB='$(THROTTLECRAB)' \
		$(BENCH) compare $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) --out $(if $(QUICK),target/bench,docs/benchmarks)

.PHONY: bench-instructions
bench-instructions: build ## Count the instructions of each call under callgrind, on Redis 7.0 (about 10 minutes)
	@scripts/install.sh valgrind
	@$(MAKE) --no-print-directory engines NAMES='$(DEBIAN_REDIS)'
	@benches/build-redis-cell.sh target/redis-cell
	@SERVER='$(ENGINES)/$(DEBIAN_REDIS)/server' MODULE='$(MODULE)' REDIS_CELL='$(REDIS_CELL)' \
		$(BENCH) instructions --out docs/benchmarks

.PHONY: bench-commandstats
bench-commandstats: build ## Measure microseconds per call, as the newest Redis counts them
	@$(MAKE) --no-print-directory engines NAMES='$(NEWEST_REDIS)'
	@SERVER='$(ENGINES)/$(NEWEST_REDIS)/server' MODULE='$(MODULE)' $(BENCH) commandstats --out docs/benchmarks

.PHONY: guard
guard: build ## Fail if a call costs more instructions than recorded in benches/ceilings.csv
	@scripts/install.sh valgrind
	@$(MAKE) --no-print-directory engines NAMES='$(DEBIAN_REDIS)'
	$(call say,'counting instructions')
	@SERVER='$(ENGINES)/$(DEBIAN_REDIS)/server' MODULE='$(MODULE)' $(BENCH) guard

.PHONY: test-redis-cell
test-redis-cell: build
	@$(MAKE) --no-print-directory engines NAMES='$(DEBIAN_REDIS)'
	@benches/build-redis-cell.sh target/redis-cell
	$(call say,'comparing CL.THROTTLE with redis-cell')
	@SERVER='$(ENGINES)/$(DEBIAN_REDIS)/server' MODULE='$(MODULE)' REDIS_CELL='$(REDIS_CELL)' $(call cargo_test,--test redis_cell)
	@SERVER='$(ENGINES)/$(DEBIAN_REDIS)/server' MODULE='$(MODULE)' REDIS_CELL='$(REDIS_CELL)' \
		$(call cargo_test,--test procedures,--ignored redis_cell)

.PHONY: lint
lint: build-tools ## Check format, lints, docs and dependencies
	@scripts/install.sh lint
	$(call say,'format')
	cargo fmt --all --check
	$(call say,'lints')
	cargo clippy --lib -p tokenbucket $(CORE) -- -D warnings
	cargo clippy --workspace --all-targets -- -D warnings $(TEST_LINTS)
	$(call say,'circles of imports')
	python3 scripts/circles.py core/src src gate/src clients/node/src clients/python/src clients/rust/src
	$(call say,'documentation')
	RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --document-private-items -p tokenbucket $(CORE)
	$(call say,'licences and sources of dependencies')
	@command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	cargo deny --log-level warn check licenses bans sources
	cargo deny --log-level warn --manifest-path gate/Cargo.toml check licenses bans sources
	cargo deny --log-level warn --manifest-path replay/Cargo.toml check licenses bans sources

# Tests and benchmarks fail by panicking.
TEST_LINTS := $(addprefix -A clippy::,unwrap_used expect_used panic indexing_slicing arithmetic_side_effects \
	cast_possible_truncation cast_possible_wrap cast_sign_loss undocumented_unsafe_blocks unreachable) -A missing_docs -A unsafe_code
