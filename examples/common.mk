# What the Makefiles of the examples share. They include it first: ABOUT is the first line of their help.
# SERVER: a Redis or Valkey server. MODULE: the built module. PORT: where `make run` listens.
SERVER ?= redis-server
MODULE ?= ../../target/release/libtokenbucket.so
override MODULE := $(shell realpath -ms '$(MODULE)')
# With a slash it is a path, from here; without, a name to be looked up in PATH.
override SERVER := $(if $(findstring /,$(SERVER)),$(shell realpath -ms '$(SERVER)'),$(SERVER))
export SERVER MODULE PORT

INSTALL := ../../testing/apt-install.sh

.PHONY: help run test clean server

help: ## Show this help
	@echo "$(ABOUT)"
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20
	@echo "  SERVER=$(SERVER)  MODULE=$(MODULE)$(if $(PORT),  PORT=$(PORT))"

# What starts servers.
server:
	@test -f '$(MODULE)' || { echo "no module at $(MODULE): run 'make build' at the top, or set MODULE" >&2; exit 1; }
	@command -v python3 >/dev/null || $(INSTALL) python3
	@command -v '$(SERVER)' >/dev/null || [ '$(SERVER)' != redis-server ] || $(INSTALL) redis-server
	@command -v '$(SERVER)' >/dev/null || { echo "no server at $(SERVER): set SERVER to a redis or valkey server" >&2; exit 1; }
