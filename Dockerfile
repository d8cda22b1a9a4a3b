# Conveyor with every engine: `docker build -t conveyor .`, then `docker run conveyor api` and the like.
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
RUN python -m venv /opt/conveyor
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src ./src
# There is no Git here to take it from. For a release: `--build-arg VERSION=$(git describe --tags --exact-match)`.
# For any other commit leave it out: what Git calls such a commit is not a version of Python.
ARG VERSION=0.2.0.dev0
RUN SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION" /opt/conveyor/bin/pip install --no-cache-dir --disable-pip-version-check \
    -c constraints.txt '.[aws,postgres,redis,s3]'

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/conveyor \
    --shell /usr/sbin/nologin conveyor
COPY --from=build /opt/conveyor /opt/conveyor
# The only folder that is written to, also for temporary files: the rest can be mounted read-only. A
# volume that Fargate mounts there has the owner that the folder has here.
ENV PATH=/opt/conveyor/bin:$PATH TMPDIR=/var/lib/conveyor PYTHONDONTWRITEBYTECODE=1
VOLUME ["/var/lib/conveyor"]
USER 10001
WORKDIR /var/lib/conveyor
EXPOSE 8080 8090
# A worker listens on 8090: start it with `-e HEALTH_PORT=8090`. ECS has checks of its own.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:%s/healthz' % os.environ.get('HEALTH_PORT', '8080'), timeout=3)"]
ENTRYPOINT ["conveyor"]
CMD ["--help"]
