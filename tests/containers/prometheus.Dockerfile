# Debian's Prometheus, where the image that compose.yaml names is not to be had.
ARG PYTHON_IMAGE
FROM ${PYTHON_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus wget && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /prometheus && chown 65534:65534 /prometheus
ENTRYPOINT ["prometheus"]
