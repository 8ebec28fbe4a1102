"""A client process that streams until it is killed. Imports little: one is started per kill."""

import time
from multiprocessing.connection import Connection

import numpy as np
import tritonclient.grpc as triton_grpc


def stream_until_killed(url: str, name: str, samples: np.ndarray, going: Connection) -> None:
    """Streams `samples` endlessly, in requests of 100 ms."""
    client = triton_grpc.InferenceServerClient(url)
    is_first = True
    while True:
        for start in range(0, len(samples), 1600):
            audio = triton_grpc.InferInput("AUDIO", [1, len(samples[start : start + 1600])], "FP32")
            audio.set_data_from_numpy(samples[None, start : start + 1600])
            client.infer("asr", [audio], sequence_id=name, sequence_start=is_first)
            if is_first:
                going.send("going")
            is_first = False
            time.sleep(0.02)
