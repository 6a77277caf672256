# The module, built by Debian 12's Rust: it loads on whatever has Debian 12's C library or a newer one.
#   docker build .                    redis:8 with the module
#   docker build --target valkey .    valkey/valkey:8 with the module
#   docker build --target module .    the module alone, as /libtokenbucket.so
#   docker build --target gate .      the gate, built by Debian 13's Rust: asked by gRPC on port 8081 and by HTTP on 8080
ARG REDIS=redis:8
ARG VALKEY=valkey/valkey:8

FROM debian:12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /project
COPY . .
RUN make build

FROM scratch AS module
COPY --from=build /project/target/release/libtokenbucket.so /libtokenbucket.so

FROM debian:13-slim AS build-gate
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /project
COPY . .
RUN make gate

# Reads limits from /srv/runtime_data/current/config. Envoy Gateway starts /bin/ratelimit.
FROM debian:13-slim AS gate
# For a Redis with TLS.
COPY --from=build-gate /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build-gate /project/gate/target/release/tokenbucket-gate /usr/bin/tokenbucket-gate
RUN ln -s tokenbucket-gate /usr/bin/ratelimit
USER 65534:65534
EXPOSE 8080 8081
CMD ["tokenbucket-gate"]

FROM ${VALKEY} AS valkey
COPY --from=module /libtokenbucket.so /usr/lib/valkey/modules/libtokenbucket.so
CMD ["valkey-server", "--loadmodule", "/usr/lib/valkey/modules/libtokenbucket.so"]

FROM ${REDIS} AS redis
COPY --from=module /libtokenbucket.so /usr/lib/redis/modules/libtokenbucket.so
CMD ["redis-server", "--loadmodule", "/usr/lib/redis/modules/libtokenbucket.so"]
