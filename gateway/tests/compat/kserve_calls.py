"""Calls of tritonclient and of the command `penstock-client`, as they are made to a server.

python kserve_calls.py GRPC_ADDRESS HTTP_ADDRESS FOLDER: FOLDER has `recording.wav`. Prints a JSON object for each call:
its name, and the words or the error.
"""

import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import soundfile
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from call_rows import print_rows

PART_SAMPLES = 8000


def calls(grpc_address: str, http_address: str, folder: Path) -> dict[str, Callable[[], str]]:
    """Each call by name; it returns its words."""
    recording = folder / "recording.wav"
    samples, _ = soundfile.read(recording, dtype="float32")

    def parts(library: ModuleType) -> Iterator[dict]:
        """The arguments of a stream's requests."""
        for start in range(0, len(samples), PART_SAMPLES):
            part = samples[start : start + PART_SAMPLES]
            audio = library.InferInput("AUDIO", [1, len(part)], "FP32")
            audio.set_data_from_numpy(np.ascontiguousarray(part[None]))
            flags = {"sequence_start": start == 0, "sequence_end": start + PART_SAMPLES >= len(samples)}
            yield {"model_name": "asr", "inputs": [audio], "sequence_id": f"of {library.__name__}", **flags}

    def infer(library: ModuleType, address: str) -> str:
        with library.InferenceServerClient(address) as client:
            *_, last = [client.infer(**part) for part in parts(library)]
        return last.as_numpy("TEXT")[0, 0].decode()

    def stream() -> str:
        answers: queue.SimpleQueue = queue.SimpleQueue()
        with triton_grpc.InferenceServerClient(grpc_address) as client:
            client.start_stream(lambda result, error: answers.put(error or result.as_numpy("TEXT")[0, 0].decode()))
            for part in parts(triton_grpc):
                client.async_stream_infer(**part)
            client.stop_stream()
        *_, last = [answers.get_nowait() for _ in range(answers.qsize())]
        return str(last)

    def command(protocol: str, address: str) -> str:
        words = [recording, "--url", address, "--protocol", protocol]
        done = subprocess.run(
            [sys.executable, "-m", "penstock_client.cli", *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    return {
        "tritonclient.grpc infer": lambda: infer(triton_grpc, grpc_address),
        "tritonclient.grpc async_stream_infer": stream,
        "tritonclient.http infer": lambda: infer(triton_http, http_address),
        "penstock-client --protocol grpc": lambda: command("grpc", grpc_address),
        "penstock-client --protocol http": lambda: command("http", http_address),
    }


def main(grpc_address: str, http_address: str, folder: str) -> None:
    print_rows(calls(grpc_address, http_address, Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
