"""CPU time of a gateway per 100 ms of audio of a stream, for each protocol: `make gateway-load STREAMS=200`.

Streams are sent in real time through a gateway's process to a stand-in for a server, a process of its own, which
recognizes a word per 50 ms. Only the gateway's CPU time counts, from the first audio of all streams to the last text.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import grpc
import numpy as np
import websockets

from penstock.reporting import commit, date_utc, describe_hardware, percentiles_ms
from penstock_gateway.riva.proto import riva_asr_pb2 as riva

SEND_S = 0.1
RIVA_SEND_SAMPLES, REALTIME_SEND_SAMPLES = 1600, 2400
_METHOD = "/nvidia.riva.asr.RivaSpeechRecognition/StreamingRecognize"
_SERVER = """if True:
    from client.tests.helpers.fake_batch_server import BatchServer
    from client.tests.helpers.fakes import FakeRecognizer
    recognizer = FakeRecognizer(max_streams=4000)
    recognizer.server_parameters |= {"max_streams": "4000", "chunk_samples": "8960", "first_chunk_samples": "9120"}
    server = BatchServer(recognizer)
    print(server.port, flush=True)
    input()"""


class Target(NamedTuple):
    """A gateway's process and its ports."""

    process_id: int
    http_port: int
    grpc_port: int

    def cpu_s(self) -> float:
        """CPU time that it has used."""
        with open(f"/proc/{self.process_id}/stat", encoding="ascii") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def gateway() -> Iterator[Target]:
    """A gateway before the stand-in."""
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(server.terminate)
        assert server.stdout is not None
        address = f"127.0.0.1:{server.stdout.readline().strip()}"
        command = [sys.executable, "-m", "penstock_gateway", "--replicas", address, "--endpoint-silence-ms", "0"]
        command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--timeout-s", "60"]
        process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        stack.callback(process.terminate)
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"127\.0\.0\.1:(\d+) \(OpenAI, Realtime\) and 127\.0\.0\.1:(\d+)", line)
        if found is None or "is up" not in process.stderr.readline():
            raise SystemExit(f"the gateway did not start: {line}")
        stack.callback(process.stderr.close)
        target = Target(process.pid, int(found[1]), int(found[2]))
        while process.poll() is None and not _is_open(target.http_port):
            time.sleep(0.05)
        yield target


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60):
        return True
    return False


class Start:
    """All streams begin when the last one has connected."""

    def __init__(self, streams: int):
        self._missing = streams
        self.is_due = asyncio.Event()

    async def wait(self) -> None:
        """Returns when all streams wait."""
        self._missing -= 1
        if not self._missing:
            self.is_due.set()
        await self.is_due.wait()


Stream = Callable[[Target, Start, int], Awaitable[float]]
"""Sends 100 ms of audio a number of times, once all are connected. Returns the seconds from its end to the final."""


async def _paced(sends: int) -> AsyncIterator[None]:
    started_s = time.monotonic()
    for number in range(sends):
        await asyncio.sleep(max(0.0, started_s + number * SEND_S - time.monotonic()))
        yield


async def riva_stream(target: Target, ready: Start, sends: int) -> float:
    """A StreamingRecognize call."""
    rng = np.random.default_rng(0)
    data = rng.integers(-3000, 3000, RIVA_SEND_SAMPLES, np.int16).tobytes()
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{target.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        call = channel.stream_stream(
            _METHOD, riva.StreamingRecognizeRequest.SerializeToString, riva.StreamingRecognizeResponse.FromString
        )()
        config = riva.RecognitionConfig(encoding=1, sample_rate_hertz=16_000, language_code="en-US")
        settings = riva.StreamingRecognitionConfig(config=config, interim_results=True)
        await call.write(riva.StreamingRecognizeRequest(streaming_config=settings))

        async def send() -> float:
            async for _ in _paced(sends):
                await call.write(riva.StreamingRecognizeRequest(audio_content=data))
            await call.done_writing()
            return time.monotonic()

        await ready.wait()
        sending = asyncio.create_task(send())
        async for _ in call:
            pass
        return time.monotonic() - await sending


async def realtime_stream(target: Target, ready: Start, sends: int) -> float:
    """A WebSocket of OpenAI's protocol at 24 kHz."""
    rng = np.random.default_rng(0)
    audio = base64.b64encode(rng.integers(-3000, 3000, REALTIME_SEND_SAMPLES, np.int16).tobytes()).decode()
    event = json.dumps({"type": "input_audio_buffer.append", "audio": audio})
    url = f"ws://127.0.0.1:{target.http_port}/v1/realtime?intent=transcription"
    async with websockets.connect(url, compression=None) as connection:
        audio_settings = {"input": {"turn_detection": None}}
        session = {"type": "transcription", "audio": audio_settings}
        await connection.send(json.dumps({"type": "session.update", "session": session}))

        async def send() -> float:
            async for _ in _paced(sends):
                await connection.send(event)
            await connection.send(json.dumps({"type": "input_audio_buffer.commit"}))
            return time.monotonic()

        await ready.wait()
        sending = asyncio.create_task(send())
        async for message in connection:
            if '"conversation.item.input_audio_transcription.completed"' in str(message):
                break
        return time.monotonic() - await sending


async def measure(name: str, stream: Stream, target: Target, streams: int, seconds: float) -> str:
    """One line of the report."""
    ready = Start(streams)
    sends = round(seconds / SEND_S)
    tasks = [asyncio.create_task(stream(target, ready, sends)) for _ in range(streams)]
    due = asyncio.create_task(ready.is_due.wait())
    await asyncio.wait([due, *tasks], return_when=asyncio.FIRST_COMPLETED)  # a stream that fails ends the wait
    before_s = target.cpu_s()
    latencies = await asyncio.gather(*tasks)
    used_s = target.cpu_s() - before_s
    latency = percentiles_ms(latencies)
    return (
        f"{name}: {1e6 * used_s / (streams * sends):.0f} us of CPU time per 100 ms of audio; final text after "
        f"{latency['p50']:.0f} ms (p50), {latency['p95']:.0f} ms (p95)"
    )


def main() -> None:
    """Measures both protocols one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="audio of each stream (20)")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{args.streams} streams; {describe_hardware()}, load {load:.1f}, {date_utc()}, commit {commit()}")
    for name, stream in (("riva", riva_stream), ("realtime", realtime_stream)):
        with gateway() as target:
            print(asyncio.run(measure(name, stream, target, args.streams, args.seconds)), flush=True)


if __name__ == "__main__":
    main()
