"""Cost of a gateway: `make gateway-load STREAMS=200`. CPU time per 100 ms of audio, then the latency that it adds.

CPU time: streams are sent in real time through a gateway to a stand-in for a server, a process of its own, which
recognizes a word per 50 ms. Only the gateway's CPU time counts, from the first audio of all streams to the last text.
Latency: see gateway_latency.py.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from loadtest.fresh_gateway import RunningGateway, fresh_gateway
from loadtest.gateway_clients import PART_S, Speech, Texts, realtime_texts, riva_texts
from penstock.reporting import commit, date_utc, describe_hardware, percentiles_ms
from scripts.gateway_latency import report_latency

_SERVER = """if True:
    from client.tests.helpers.fake_batch_server import BatchServer
    from client.tests.helpers.fakes import FakeRecognizer
    recognizer = FakeRecognizer(max_streams=4000)
    recognizer.server_parameters |= {"max_streams": "4000", "chunk_samples": "8960", "first_chunk_samples": "9120"}
    server = BatchServer(recognizer)
    print(server.port, flush=True)
    input()"""
Open = Callable[[RunningGateway, Speech], Texts]
PROTOCOLS: dict[str, tuple[int, Open]] = {
    "riva": (16_000, riva_texts),
    "realtime": (24_000, lambda gateway, speech: realtime_texts(gateway, speech, has_details=False)),
}
"""Name -> sample rate in Hz, and the client."""


@contextmanager
def stand_in() -> Iterator[str]:
    """The address of the stand-in for a server."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


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


async def run_stream(texts: Texts, speech: Speech) -> float:
    """Seconds from the end of the speech to the last text."""
    last_s = float("nan")
    async for _ in texts:
        last_s = time.monotonic()
    return last_s - speech.end_s


async def measure(name: str, gateway: RunningGateway, streams: int, seconds: float) -> str:
    """One line of the report."""
    (rate_hz, open_texts), start = PROTOCOLS[name], Start(streams)
    noise = np.random.default_rng(0).integers(-3000, 3000, round(rate_hz * seconds), np.int16)
    speeches = [Speech(noise, rate_hz, wait=start.wait) for _ in range(streams)]
    tasks = [asyncio.create_task(run_stream(open_texts(gateway, speech), speech)) for speech in speeches]
    due = asyncio.create_task(start.is_due.wait())
    await asyncio.wait([due, *tasks], return_when=asyncio.FIRST_COMPLETED)  # a stream that fails ends the wait
    before_s = cpu_s(gateway.process_id)
    latency = percentiles_ms(await asyncio.gather(*tasks))
    parts = streams * seconds / PART_S
    used_us = 1e6 * (cpu_s(gateway.process_id) - before_s)
    return (
        f"{name}: {used_us / parts:.0f} us of CPU time per 100 ms of audio; final text after "
        f"{latency['p50']:.0f} ms (p50), {latency['p95']:.0f} ms (p95)"
    )


def cpu_s(process_id: int) -> float:
    """CPU time that a process has used."""
    with open(f"/proc/{process_id}/stat", encoding="ascii") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measures both protocols one after the other, then the latency."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--streams", type=int, default=200, help="for the CPU time; 0: do not measure it (200)")
    add("--seconds", type=float, default=20.0, help="audio of each stream, for the CPU time (20)")
    add("--latency-streams", type=int, default=4, help="of each way, for the latency; 0: do not measure it (4)")
    add("--latency-seconds", type=float, default=60.0, help="audio of each stream, for the latency (60)")
    args = parser.parse_args()
    print(f"{describe_hardware()}, load {os.getloadavg()[0]:.1f}, {date_utc()}, commit {commit()}")
    for name in PROTOCOLS if args.streams else ():
        with stand_in() as server, fresh_gateway(server, "--endpoint-silence-ms", "0", "--timeout-s", "60") as gateway:
            line = asyncio.run(measure(name, gateway, args.streams, args.seconds))
            print(f"{args.streams} streams, {line}", flush=True)
    if args.latency_streams:
        report_latency(args.latency_streams, args.latency_seconds)


if __name__ == "__main__":
    main()
