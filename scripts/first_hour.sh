#!/usr/bin/env bash
# What a new user does, in a clean clone of HEAD: builds the wheels, installs them into an empty environment from the
# package index, serves the bundled model from another folder on free ports, transcribes by penstock-client and by curl,
# stops. Prints each step with its time. Ends with status 1 at the first step that fails, and keeps its files.
#
# Usage: scripts/first_hour.sh                   # with the versions of locks/pins.txt
#        PIP_CONSTRAINT= scripts/first_hour.sh   # with the newest versions that the package index has
# PYTHON: the interpreter for the environments (python3).
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
clone=$folder/penstock
git clone --quiet . "$clone"
python=${PYTHON:-python3}
recording=$clone/tests/data/an4/flac/an395-mjwl-b.flac
words="enter one oh four"
export PIP_CONSTRAINT=${PIP_CONSTRAINT-$clone/locks/pins.txt} PIP_DISABLE_PIP_VERSION_CHECK=1
export PENSTOCK_CACHE=$folder/cache # the server is unpacked anew
server=

finish() {
    local status=$?
    [ -z "$server" ] || { kill -KILL "$server" 2>/dev/null || true; }
    [ $status -ne 0 ] || { rm -rf "$folder"; return; }
    tail -n 30 "$folder/output"
    echo "FAILED. Its files: $folder"
}
trap finish EXIT

step() { # TITLE COMMAND...: runs the command, shows the end of its output and its time
    local title=$1 start=$SECONDS
    shift
    printf '\n== %s\n' "$title"
    "$@" >"$folder/output" 2>&1
    tail -n "${LINES_SHOWN:-4}" "$folder/output" | cut -c -300 | sed 's/^/   /'
    printf '   [%d s]\n' $((SECONDS - start))
}

build_wheels() {
    "$python" -m venv "$folder/venv"
    "$folder/venv/bin/pip" wheel --quiet --no-deps --wheel-dir "$folder/wheels" "$clone" "$clone/client"
    ls -sh1 "$folder/wheels"
}

install_wheels() {
    "$folder/venv/bin/pip" install --quiet "$folder"/wheels/penstock-*.whl "$folder"/wheels/penstock_client-*.whl
    "$folder/venv/bin/pip" check # before the wheel of the server, whose own Python API it would ask for
    "$folder/venv/bin/pip" install --quiet --no-deps nvidia-pytriton
    "$folder/venv/bin/pip" list 2>/dev/null | grep -E '^(numpy|nvidia-pytriton|penstock|penstock-client|torch) '
    du -sh "$folder/venv" | cut -f 1
}

serve() { # in another folder; returns when it is ready
    mkdir -p "$folder/elsewhere"
    cd "$folder/elsewhere"
    "$folder/venv/bin/penstock" serve --http-port 0 --grpc-port 0 --metrics-port 0 >"$folder/server.log" 2>&1 &
    server=$!
    until grep -q ' server: ready after ' "$folder/server.log"; do
        kill -0 "$server" || { cat "$folder/server.log"; return 1; }
        sleep 0.2
    done
    cat "$folder/server.log"
}

url() { # gRPC or HTTP: its address, from the server's last line
    sed -n "s/.* server: ready.* $1 \([^ ,]*\).*/\1/p" "$folder/server.log"
}

expect() { # COMMAND...: its output has the words that are spoken
    "$@" | tee "$folder/text"
    grep -q "$words" "$folder/text"
}

curl_request() { # the recording as one KServe request of JSON
    "$folder/venv/bin/python" - "$recording" >"$folder/request.json" <<'PYTHON'
import json, sys
import soundfile

samples, _ = soundfile.read(sys.argv[1], dtype="float32")
audio = {"name": "AUDIO", "datatype": "FP32", "shape": [1, len(samples)], "data": samples.tolist()}
stream = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
print(json.dumps({"parameters": stream, "inputs": [audio], "outputs": [{"name": "TEXT"}]}))
PYTHON
    curl --silent --show-error --fail "http://$(url HTTP)/v2/models/asr/infer" --data "@$folder/request.json"
}

stop() {
    kill -INT "$server"
    wait "$server"
    server=
    tail -n 1 "$folder/server.log"
}

echo "Penstock $(git rev-parse --short HEAD), $("$python" --version), constraints: ${PIP_CONSTRAINT:-none}"
step "build both wheels" build_wheels
LINES_SHOWN=7 step "install them into an empty environment, with a Triton server" install_wheels
LINES_SHOWN=16 step "penstock serve, from another folder" serve
step "penstock health" "$folder/venv/bin/penstock" health --http-url "$(url HTTP)"
step "penstock-client over gRPC" expect "$folder/venv/bin/penstock-client" "$recording" --url "$(url gRPC)"
step "penstock-client over HTTP" expect "$folder/venv/bin/penstock-client" "$recording" --protocol http --url "$(url HTTP)"
step "curl" expect curl_request
step "penstock transcribe, without a server" expect "$folder/venv/bin/penstock" transcribe "$recording"
step "stop" stop
printf '\nAll steps passed in %d s.\n' $SECONDS
