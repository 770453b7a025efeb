# The extension in an image of PostgreSQL, preloaded.
#
#   docker build -t idempotency .
#
# BASE is an image of Debian with PostgreSQL of the version PG_MAJOR, such as the
# official one, and with the repository that its packages come from.

ARG PG_MAJOR=17
ARG BASE=postgres:${PG_MAJOR}-trixie

FROM ${BASE} AS build
ARG PG_MAJOR=17
RUN apt-get update && apt-get install -y --no-install-recommends \
	gcc libc6-dev libcurl4-openssl-dev libssl-dev make postgresql-server-dev-${PG_MAJOR}
COPY Makefile idempotency.control /src/
COPY src /src/src
RUN make -C /src install DESTDIR=/built PG_CONFIG=/usr/lib/postgresql/${PG_MAJOR}/bin/pg_config

FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends libcurl4 \
	&& rm -rf /var/lib/apt/lists/*
COPY --from=build /built /
CMD ["postgres", "-c", "shared_preload_libraries=idempotency"]
