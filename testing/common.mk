# What the Makefiles below the top share. They include it first, or after ABOUT, the first line of their help.
# SERVER: a Redis or Valkey server. MODULE: the built module. PORT: where `make run` listens. PYTHON: 3.11 or newer.
TESTING := $(patsubst %/common.mk,%,$(lastword $(MAKEFILE_LIST)))
TOP := $(TESTING:%/testing=%)
SERVER ?= $(TOP)/target/engines/redis-7.0.15/server
MODULE ?= $(TOP)/target/release/libtokenbucket.so
PYTHON ?= python3
override MODULE := $(shell realpath -ms '$(MODULE)')
# With a slash it is a path, from here; without, a name to be looked up in PATH.
override SERVER := $(if $(findstring /,$(SERVER)),$(shell realpath -ms '$(SERVER)'),$(SERVER))
export SERVER MODULE PORT

INSTALL := $(TESTING)/apt-install.sh

.PHONY: help build run test setup lint bench clean server cargo cc go node venv

help: ## Show this help
	@$(if $(ABOUT),echo "$(ABOUT)")
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 29
	@echo "  SERVER=$(SERVER)  MODULE=$(MODULE)$(if $(PORT),  PORT=$(PORT))"

# What starts servers.
server:
	@test -f '$(MODULE)' || { echo "no module at $(MODULE): run 'make build' at the top, or set MODULE" >&2; exit 1; }
	@command -v python3 >/dev/null || $(INSTALL) python3
	@command -v '$(SERVER)' >/dev/null || [ '$(SERVER)' != redis-server ] || $(INSTALL) redis-server
	@case '$(SERVER)' in */target/engines/*) [ -x '$(SERVER)' ] || $(MAKE) --no-print-directory -C $(TOP) engines NAMES="$$(basename "$$(dirname '$(SERVER)')")";; esac
	@command -v '$(SERVER)' >/dev/null || { echo "no server at $(SERVER): set SERVER to a redis or valkey server" >&2; exit 1; }

cargo:
	@command -v cargo >/dev/null || { echo "no cargo: please install Rust 1.88 or later, see https://rustup.rs" >&2; exit 1; }

cc:
	@command -v cc >/dev/null || $(INSTALL) gcc libc6-dev

go:
	@command -v go >/dev/null || $(INSTALL) golang-go

# What virtual environments need.
venv:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: set PYTHON")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(INSTALL) python3-venv

# Where a distribution's Node is too old, one of our own.
NODE_VERSION := 22.23.3
NODE := $(abspath $(TOP)/clients/node/.node)
export PATH := $(NODE)/node_modules/.bin:$(PATH)

node:
	@command -v npm >/dev/null || $(INSTALL) nodejs npm
	@node -e 'const [major, minor] = process.versions.node.split("."); process.exit(major > 20 || (major == 20 && minor >= 19) ? 0 : 1)' || { \
		echo "== installing Node $(NODE_VERSION) into $(NODE)"; \
		npm install --loglevel=error --no-save --no-package-lock --prefix '$(NODE)' \
			"node-linux-$$(node -p process.arch)@$(NODE_VERSION)"; }
