# What the Makefiles of the gate and of tokenbucket-replay share, which include it first.
include ../testing/common.mk

# Where the gate's tests install proxies.
PROXIES := $(shell realpath -ms ../gate/target/proxies)
ENVOY ?= $(PROXIES)/envoy
CADDY ?= $(PROXIES)/bin/caddy
BUILT := $(shell realpath -ms '$(or $(CARGO_TARGET_DIR),target)')/release
export ENVOY CADDY

.PHONY: tests

tests: setup ## Test it (TESTS=formats:: is a test-name filter)
	@echo '== compiling the tests'
	@cargo test --quiet --locked --no-run
	@echo '== testing'
	@cargo test --quiet --locked -- $(TESTS)

lint: ## Check format, lints and documentation
	@echo '== linting'
	@cargo fmt --check
	@cargo clippy --quiet --locked --lib --bins -- -D warnings
	@cargo clippy --quiet --locked --all-targets -- -D warnings $(TEST_LINTS)
	@echo '== building the documentation'
	@RUSTDOCFLAGS='-D warnings' cargo doc --quiet --locked --no-deps

# Tests fail by panicking.
TEST_LINTS := $(addprefix -A clippy::,unwrap_used expect_used panic indexing_slicing)

clean: ## Remove what was built and installed here
	cargo clean
