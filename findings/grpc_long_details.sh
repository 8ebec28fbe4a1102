#!/usr/bin/env bash
# Expected: context.abort(INVALID_ARGUMENT, details) reaches the client as INVALID_ARGUMENT, long details cut at worst.
# Seen: details travel in the trailing metadata. Between 8 and 16 KB the client replaces the status by
#   RESOURCE_EXHAUSTED at random, more often the longer they are; beyond 16 KB always.
# Hurts: servers that put tracebacks or lists of errors in the details: clients retry what can never succeed, or do
#   not retry UNAVAILABLE, and the same request gives another code each time.
# Versions: grpcio 1.85.3. The channel option grpc.max_metadata_size raises the limits.
# Source: gRPC core's early detection of large metadata, which its message says rejects requests "with some random
#   probability"; it acts on replies, too.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile grpcio==1.85.3
"$work/venv/bin/python" - <<'EOF'
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc

print("grpcio", grpc.__version__)


class Handler(grpc.GenericRpcHandler):
    """Aborts /test/N with N characters of details."""

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        details = "x" * int(call.method.rsplit("/", 1)[1])
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: context.abort(grpc.StatusCode.INVALID_ARGUMENT, details)
        )


server = grpc.server(ThreadPoolExecutor(4), handlers=[Handler()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
codes = {}
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    for length in (1000, 7000, 10000, 13000, 20000):
        codes[length] = Counter()
        for _ in range(200):
            try:
                channel.unary_unary(f"/test/{length}")(b"")
            except grpc.RpcError as error:
                codes[length][error.code().name] += 1
        print(f"{length} characters of details, 200 calls:", dict(codes[length]))
server.stop(0)
unchanged = (
    codes[1000] == codes[7000] == {"INVALID_ARGUMENT": 200}
    and len(codes[10000]) == len(codes[13000]) == 2
    and codes[20000] == {"RESOURCE_EXHAUSTED": 200}
)
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
