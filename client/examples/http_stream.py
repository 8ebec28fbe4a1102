"""Streams a WAV file (16 kHz, mono, 16 bit) over HTTP with Python's standard library alone; prints text as it comes.

python http_stream.py http://localhost:8000 speech.wav
"""

import array
import json
import os
import sys
import urllib.request
import wave
from collections.abc import Mapping

REQUEST_SAMPLES = 8_000  # 0.5 s


def infer(server: str, samples: "array.array[float]", parameters: Mapping[str, int]) -> dict[str, list[str]]:
    """Sends one request, JSON header and binary samples; returns the outputs by name."""
    size = {"binary_data_size": 4 * len(samples)}
    audio = {"name": "AUDIO", "shape": [1, len(samples)], "datatype": "FP32", "parameters": size}
    header = json.dumps({"inputs": [audio], "parameters": parameters}).encode()
    headers = {"Inference-Header-Content-Length": str(len(header))}
    request = urllib.request.Request(f"{server}/v2/models/asr/infer", header + samples.tobytes(), headers)
    with urllib.request.urlopen(request) as response:
        return {output["name"]: output["data"] for output in json.load(response)["outputs"]}


def main(server: str, path: str) -> None:
    """Any number of samples per request; the last request has `sequence_end`."""
    stream = {"sequence_id": os.getpid(), "sequence_start": True}
    with wave.open(path) as wav:
        while pcm := array.array("h", wav.readframes(REQUEST_SAMPLES)):
            print(infer(server, array.array("f", (s / 32768 for s in pcm)), stream)["TEXT"][0])
            stream["sequence_start"] = False
    print("final:", infer(server, array.array("f"), stream | {"sequence_end": True})["TEXT"][0])


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 3 else sys.exit(__doc__)
