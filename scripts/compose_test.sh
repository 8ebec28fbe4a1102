#!/usr/bin/env bash
# `make compose-test`: the images and the composition in containers (docs/deployment.md#images).
# A Docker daemon and images of Python, HAProxy and Prometheus are taken where there are any; root without them gets
# Debian's packages, a daemon of its own in a temporary directory, and images made of packages. Containers, networks,
# volumes, images, daemon and directory are gone at the end, also after a failure; what is left is named, and an error.
# PYTEST: the command that runs the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d "${TMPDIR:-/tmp}/penstock-compose-XXXXXX")
project=penstock-test-$$
daemon=

say() { echo "compose-test: $*" >&2; }
fail() { say "error: $*"; exit 2; }

finish() {
    status=$?
    trap - EXIT INT TERM
    set +e
    local kind left=
    for kind in "container rm --force --volumes" "network rm" "volume rm" "image rm --force"; do
        # shellcheck disable=SC2086
        ours "${kind%% *}" | xargs --no-run-if-empty docker $kind >>"$folder/rm" 2>&1
        left+=$(ours "${kind%% *}" | sed "s/^/ ${kind%% *} /")
    done
    if [ -n "$daemon" ]; then
        kill "$daemon"
        wait "$daemon"
        # A network namespace stays mounted.
        awk -v below="$folder/" 'index($2, below) == 1 { print $2 }' /proc/mounts | xargs --no-run-if-empty umount
        for _ in $(seq 60); do
            pgrep --full "$folder/" >/dev/null || break
            sleep 0.5
        done
        left+=$(pgrep --full --list-full "$folder/" | sed 's/^/ process /')
        left+=$(comm -13 "$folder/interfaces" <(ls /sys/class/net) | sed 's/^/ interface /')
    fi
    if [ -n "$left" ]; then
        say "error: left at the end:$left"
        cat "$folder/rm" >&2
        status=1
    fi
    rm -rf --one-file-system "$folder" || status=1
    exit $status
}

# Names or ids of what this run made: containers, networks, volumes or images.
ours() {
    local label=label=com.docker.compose.project=$project
    case $1 in
    container) docker container ls --all --quiet --filter "$label" ;;
    image) docker image ls --format '{{.Repository}}:{{.Tag}}' "$project" ;;
    *) docker "$1" ls --quiet --filter "$label" ;;
    esac 2>/dev/null
}
trap finish EXIT
trap 'exit 130' INT TERM

need() { make --no-print-directory programs NEEDS="$*"; }

start_daemon() {
    [ "$(id -u)" = 0 ] || fail "no Docker daemon answers, and only root can start one: $(docker info 2>&1 | tail -n 1)"
    need dockerd:docker.io
    free_gb=$(($(df --output=avail --block-size=1M "$folder" | tail -n 1) / 1024))
    [ "$free_gb" -ge 12 ] || fail "$folder has $free_gb GB free, and needs 12; TMPDIR names another place"
    ls /sys/class/net >"$folder/interfaces"
    # It leaves the rules and the routes of this machine as they are, so that only the host's network leads out.
    dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" --host "unix://$folder/socket" \
        --bridge=none --iptables=false --ip-forward=false --ip-masq=false --storage-driver=overlay2 \
        >"$folder/dockerd" 2>&1 &
    daemon=$!
    export DOCKER_HOST=unix://$folder/socket
    for _ in $(seq 120); do
        ! docker info >/dev/null 2>&1 || return 0
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.5
    done
    tail -n 20 "$folder/dockerd" >&2
    fail "dockerd does not start"
}

# An image in a variable, if it is to be had; else made of Debian's packages, as "NAME SUITE PACKAGES OPTIONS...".
choose_image() {
    local variable=$1 name=$3
    local image=${!variable-$2}
    if docker image inspect "$image" >/dev/null 2>&1 || docker pull --quiet "$image" >"$folder/pull" 2>&1; then
        say "image $image"
    else
        say "$image is not to be had ($(tail -n 1 "$folder/pull")): an image of Debian's packages stands in"
        need mmdebstrap:mmdebstrap
        mmdebstrap --quiet --variant=minbase --include="$5" "${@:6}" "$4" "$folder/image.tar"
        image=$project:$name
        docker import "$folder/image.tar" "$image" >/dev/null
        rm "$folder/image.tar"
    fi
    export "$variable=$image"
}

# pip's setting: its variable, else its configuration.
setting() {
    local variable
    variable=PIP_$(tr a-z- A-Z_ <<<"$1")
    echo "${!variable-$(python3 -m pip config get "global.$1" 2>/dev/null || true)}" | xargs
}

# The build image has this machine's certificates and folders of wheels; an index in a folder stays outside.
make_build_image() {
    local name path
    export PIP_CERT PIP_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL PYTHON_BUILD_IMAGE=$project:build
    PIP_CERT=$(setting cert) PIP_FIND_LINKS=$(setting find-links) PIP_INDEX_URL=$(setting index-url)
    PIP_EXTRA_INDEX_URL=$(setting extra-index-url)
    mkdir -p "$folder/build/root"
    for path in $PIP_CERT $PIP_FIND_LINKS; do
        [ ! -e "$path" ] || cp --parents --recursive --dereference "$path" "$folder/build/root"
    done
    for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL; do
        [[ ${!name} != *file:* ]] || say "$name without its folders, which no build sees: ${!name}"
        printf -v "$name" %s "$(tr ' ' '\n' <<<"${!name}" | grep -v ^file: | xargs)"
    done
    printf 'FROM %s\nCOPY root /\n' "$PYTHON_IMAGE" >"$folder/build/Dockerfile"
    docker build --quiet --tag "$PYTHON_BUILD_IMAGE" "$folder/build" >/dev/null
    rm -r "$folder/build"
}

need docker:docker.io openssl:openssl
docker info >/dev/null 2>&1 || start_daemon
say "Docker $(docker version --format '{{.Server.Version}}')${daemon:+, a daemon of its own}"
COMPOSE="docker compose"
if ! $COMPOSE version >/dev/null 2>&1; then
    need docker-compose:docker-compose
    COMPOSE=docker-compose
fi
docker buildx version >/dev/null 2>&1 || export DOCKER_BUILDKIT=0
export COMPOSE COMPOSE_PROJECT_NAME=$project BUILD_NETWORK=${BUILD_NETWORK-default}
[ -z "$daemon" ] || BUILD_NETWORK=host
# Debian's Python, at the paths of the official image. The hooks' variables are their own.
official=$(sed -n 's/^ARG PYTHON_IMAGE=//p' docker/Dockerfile)
python=python$(cut -d: -f2 <<<"$official" | cut -d. -f1-2) suite=${official##*-}
# shellcheck disable=SC2016
choose_image PYTHON_IMAGE "$official" python "$suite" "ca-certificates,python3,python3-venv,libgomp1,lib$python" \
    --customize-hook='ln -s python3 "$1/usr/bin/python"' \
    --customize-hook="ln -sf lib$python.so.1.0 \"\$1/usr/lib/$(uname -m)-linux-gnu/lib$python.so\""
choose_image HAPROXY_IMAGE haproxy:2.6 haproxy "$suite" haproxy
# shellcheck disable=SC2016
choose_image PROMETHEUS_IMAGE "$(sed -n 's/^ *image: \(prom\/.*\)/\1/p' compose.yaml)" prometheus "$suite" prometheus,wget \
    --customize-hook='install --directory --owner=65534 --group=65534 "$1/prometheus"'
make_build_image
${PYTEST:-python3 -m pytest} -m containers --basetemp "$folder/tests" tests/containers "$@"
