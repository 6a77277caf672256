# What the Makefiles of the gate and of tokenbucket-replay share, which include it first.
# SERVER: a Redis or Valkey server. MODULE: the built module.
SERVER ?= ../target/engines/redis-7.0.15/server
MODULE ?= ../target/release/libtokenbucket.so
override MODULE := $(shell realpath -ms '$(MODULE)')
# With a slash it is a path, from here; without, a name to be looked up in PATH.
override SERVER := $(if $(findstring /,$(SERVER)),$(shell realpath -ms '$(SERVER)'),$(SERVER))

# Where the gate's tests install proxies.
PROXIES := $(shell realpath -ms ../gate/target/proxies)
ENVOY ?= $(PROXIES)/envoy
CADDY ?= $(PROXIES)/bin/caddy
BUILT := $(shell realpath -ms '$(or $(CARGO_TARGET_DIR),target)')/release
export SERVER MODULE ENVOY CADDY

.PHONY: help build test server tests bench lint clean

help: ## Show this help
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)
	@echo "  SERVER=$(SERVER)  MODULE=$(MODULE)$(if $(PORT),  PORT=$(PORT))"

server:
	@test -f '$(MODULE)' || { echo "no module at $(MODULE): run 'make build' at the top, or set MODULE" >&2; exit 1; }
	@command -v '$(SERVER)' >/dev/null || { echo "no server at $(SERVER): set SERVER to a redis or valkey server" >&2; exit 1; }

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
