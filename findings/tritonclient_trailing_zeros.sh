#!/usr/bin/env bash
# Expected: PCM or a file in a BYTES tensor arrives byte for byte, from np.array([audio]) as from an object array.
# Seen: np.array([bytes]) has a fixed-width type that drops trailing zero bytes, and tritonclient accepts it. Audio that
#   ends in digital silence arrives shorter, by an odd number of bytes if its last sample is below 256.
# Hurts: the end of an utterance is missing, and a server that checks for whole samples rejects one recording in many.
# Versions: tritonclient 2.73.0 with numpy 2.4.6. np.array([audio], dtype=object) is exact.
# Source: serialize_byte_tensor() in tritonclient/utils takes np.bytes_ arrays; numpy strips the zeros.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile 'tritonclient[grpc]==2.73.0' numpy==2.4.6
"$work/venv/bin/python" - <<'EOF'
import importlib.metadata

import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.utils import deserialize_bytes_tensor

print("tritonclient", importlib.metadata.version("tritonclient"), "numpy", np.__version__)
speech = (3000 * np.sin(np.arange(16000) / 10)).astype("<i2")
audio = np.concatenate([speech, np.array([7, 0, 0], "<i2"), np.zeros(8000, "<i2")]).tobytes()
received = {}
for name, tensor in {"np.array([audio])": np.array([audio]), "dtype=object": np.array([audio], dtype=object)}.items():
    request = InferInput("AUDIO", [1], "BYTES")
    request.set_data_from_numpy(tensor)
    (received[name],) = deserialize_bytes_tensor(request._get_content())  # the bytes of the request
    print(f"{name}: {len(audio)} bytes sent, {len(received[name])} in the request")
lost = len(audio) - len(received["np.array([audio])"])
unchanged = received["dtype=object"] == audio and lost == 16005
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
