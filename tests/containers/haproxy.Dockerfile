ARG PYTHON_IMAGE
FROM ${PYTHON_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends haproxy && rm -rf /var/lib/apt/lists/*
CMD ["haproxy", "-db", "-f", "/etc/haproxy/haproxy.cfg"]
