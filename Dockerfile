# pinner in a container, run by a user without privileges. Every Python package has its hash in uv.lock.
#
#   docker build -t pinner .
#   docker run --rm --network host -v pinner:/var/lib/pinner pinner up quickstart.toml --foreground
#
# A base by its digest makes the whole image repeatable: --build-arg BASE=debian:bookworm-slim@sha256:…
# (`docker buildx imagetools inspect debian:bookworm-slim` prints today's). It needs apt.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*

FROM base AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv
# Only fetches the uv that uv.lock names by hash, which is the one that goes into the image.
RUN python3 -m venv /uv && /uv/bin/pip install --quiet "uv>=0.13.9,<0.14"
ENV UV_PROJECT_ENVIRONMENT=/opt/pinner UV_PYTHON=/usr/bin/python3 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
WORKDIR /src
COPY pyproject.toml uv.lock ./
RUN /uv/bin/uv sync --locked --no-dev --no-install-project --compile-bytecode --quiet
COPY README.md LICENSE ./
COPY pinner pinner
RUN /uv/bin/uv sync --locked --no-dev --no-editable --compile-bytecode --quiet

FROM base
RUN useradd --uid 10001 --create-home pinner && install -d -o pinner -g pinner /var/lib/pinner
COPY --from=build /opt/pinner /opt/pinner
COPY deployments /srv/deployments
ENV PATH=/opt/pinner/bin:$PATH PINNER_HOME=/var/lib/pinner
# Workspaces, downloads and runs: keep it in a volume, so that they outlive the container.
VOLUME /var/lib/pinner
WORKDIR /srv
USER pinner
# As PID 1 `up --foreground` stops the server on SIGTERM, reaps what its parents leave, and ends when the server does.
# SGLang may need longer to stop than the ten seconds that docker waits: docker run --stop-timeout 60.
ENTRYPOINT ["pinner"]
CMD ["--help"]
