# A worker for the sagas of one project, which is mounted at /project (or added in an image of your own: FROM this one,
# COPY your folder to /project, pip install what your actions need).
#
# With --build-arg SPARK=true also for sagas with Spark steps: Java, PySpark and an archive of its classes, some 900 MB more.

ARG SPARK=false

FROM python:3.11.14-slim-bookworm AS build
ARG SPARK
WORKDIR /build
RUN python -m venv /opt/saga
ENV PATH=/opt/saga/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY sagas sagas
COPY spark_steps spark_steps
COPY activities activities
COPY workers workers
COPY cli cli
# Not editable: the image holds the packages themselves, and nothing of the build folder.
RUN if [ "$SPARK" = true ]; then extras=kafka,mysql,otel,spark; else extras=kafka,mysql,otel; fi && \
    pip install -c constraints.txt ".[$extras]"

FROM python:3.11.14-slim-bookworm
ARG SPARK
# The package of Java links manual pages into a folder that slim images do not have.
RUN if [ "$SPARK" = true ]; then \
        mkdir -p /usr/share/man/man1 && apt-get update && \
        apt-get install --yes --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*; \
    fi
LABEL org.opencontainers.image.title="saga-orchestrator" org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 saga && useradd --system --uid 10001 --gid saga --home-dir /project saga
# What a volume that is mounted there is made like: staged rows, tables, a runner's scratch files.
RUN install --directory --owner=saga --group=saga /stage /lake /scratch
COPY --from=build /opt/saga /opt/saga
# What is mounted at /project belongs to a user of the host; whoever mounts it there means it to be run.
ENV PATH=/opt/saga/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 SAGA_TRUST_PROJECT=/project
# Spark then starts in half the time; it also starts without it.
RUN if [ "$SPARK" = true ]; then python -m saga_spark.runner.class_data_sharing || true; fi
WORKDIR /project
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["saga"]
CMD ["worker", "--health", "0.0.0.0:8080"]
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/readyz', timeout=2)"]
