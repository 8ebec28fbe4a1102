#!/usr/bin/env bash
# Writes the Python modules of Riva's messages from gateway/src/penstock_gateway/riva/proto/*.proto. Code of newer
# releases of grpcio-tools needs a newer protobuf than the one that is locked.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=build/protos
[ -x $tools/bin/python ] || { "${PYTHON:-python3}" -m venv $tools && $tools/bin/pip install --quiet grpcio-tools==1.76.0; }
cd gateway/src
../../$tools/bin/python -m grpc_tools.protoc -I . --python_out=. penstock_gateway/riva/proto/*.proto
