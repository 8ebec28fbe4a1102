"""Sends two streams in one request to the model `asr_batch`, with tritonclient alone; prints their rows and finality.

python batch_request.py localhost:8001
"""

import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton

STARTS_AND_ENDS, NO_OPTIONS = 1 + 2, -1


def main(url: str) -> None:
    """Sends 1 s of silence for each stream."""
    rows = np.array([[[number, 16_000, STARTS_AND_ENDS, NO_OPTIONS] for number in (1, 2)]], np.int64)
    audio, pcm = np.zeros([1, 0], np.float32), np.zeros([1, 32_000], np.int16)  # samples in one of the two
    inputs = [
        triton.InferInput(name, values.shape, datatype).set_data_from_numpy(values)
        for name, values, datatype in (("AUDIO", audio, "FP32"), ("PCM", pcm, "INT16"), ("ROWS", rows, "INT64"))
    ]
    with triton.InferenceServerClient(url) as client:
        reply: Any = client.infer("asr_batch", inputs, parameters={"client": "example"})
    print(reply.as_numpy("ROW").tolist(), reply.as_numpy("IS_FINAL").tolist())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
