# The module, built by Debian 12's Rust: it loads on whatever has Debian 12's C library or a newer one.
#   docker build .                    redis:8 with the module
#   docker build --target valkey .    valkey/valkey:8 with the module
#   docker build --target module .    the module alone, as /libtokenbucket.so
ARG REDIS=redis:8
ARG VALKEY=valkey/valkey:8

FROM debian:12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /project
COPY . .
RUN make build

FROM scratch AS module
COPY --from=build /project/target/release/libtokenbucket.so /libtokenbucket.so

FROM ${VALKEY} AS valkey
COPY --from=module /libtokenbucket.so /usr/lib/valkey/modules/libtokenbucket.so
CMD ["valkey-server", "--loadmodule", "/usr/lib/valkey/modules/libtokenbucket.so"]

FROM ${REDIS} AS redis
COPY --from=module /libtokenbucket.so /usr/lib/redis/modules/libtokenbucket.so
CMD ["redis-server", "--loadmodule", "/usr/lib/redis/modules/libtokenbucket.so"]
