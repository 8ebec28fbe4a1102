"""`python -m trials.gateway_attack`: what a client may try against a gateway, beside a live stream of another key.

Prints a table with what the attacker got, the latency of the stream and the gateway's memory. The exit status is 1
where an answer is not one of the documented errors, or a limit is exceeded.
"""

import argparse
import asyncio
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import grpc
import numpy as np
import psutil
import soundfile
import websockets

from loadtest.fresh_gateway import RunningGateway, fresh_gateway
from loadtest.gateway_clients import GatewayVoice, realtime_texts
from loadtest.locust_run import ServerPlan, fresh_server
from loadtest.options import BUNDLE, DEFAULT_RECORDINGS
from penstock.errors import PenstockError
from penstock.evaluation.manifest import read_manifest
from penstock.reporting import markdown_table
from penstock_client.audio.tracks import load
from penstock_client.log_lines import level_of

ATTACKER, OTHER = "sk-attacker", "sk-other"
_MESSAGE_BYTES = 60 << 20
_RECOGNIZE = "/nvidia.riva.asr.RivaSpeechRecognition/Recognize"
_HANDSHAKE = "/v1/realtime?intent=transcription"
_INFER, _TRANSCRIBE = "POST /v2/models/asr/infer", "POST /v1/audio/transcriptions"
_FORM = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
_FORM_END = b"\r\n--x--\r\n"
_IDLE_CONNECTIONS = 10_000
Address = tuple[str, str]
"""HOST:PORT of HTTP and of gRPC."""
Outcomes = Counter[str]
SAMPLE_RATE_HZ, PART_SAMPLES = 16_000, 1600
_KEYS = ((ATTACKER, 2), (OTHER, 8))
_POLL_S = 0.1
_START_S = 2.0


async def _repeat(once: Callable[[], Coroutine[None, None, str]], count: int, seconds: float) -> Outcomes:
    """Does it again and again in `count` tasks for this time; counts what it returns."""
    outcomes, end_s = Counter[str](), time.monotonic() + seconds

    async def run() -> None:
        while time.monotonic() < end_s:
            outcomes[await once()] += 1

    await asyncio.gather(*(run() for _ in range(count)))
    return outcomes


async def large_calls(
    address: Address, seconds: float, compression: grpc.Compression = grpc.Compression.NoCompression, key: str = ""
) -> Outcomes:
    """Recognize with 60 MiB of zeros, which are no message: 61 kB as gzip."""
    message = bytes(_MESSAGE_BYTES)
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    metadata = (("authorization", f"Bearer {key}"),) if key else ()

    async def recognize() -> str:
        async with grpc.aio.insecure_channel(address[1], options) as channel:
            call = channel.unary_unary(_RECOGNIZE)(message, metadata=metadata, compression=compression)
            return (await call.code()).name

    return await _repeat(recognize, 4, seconds)


async def headers(address: Address, seconds: float, piece: bytes, pause_s: float = 0.0) -> Outcomes:
    """Requests whose header does not end, each until the gateway closes the connection."""
    end_s = time.monotonic() + seconds

    async def request() -> str:
        async with _connected(address) as (reading, writer):
            with suppress(OSError):
                writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
                while not reading.done() and time.monotonic() < end_s:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.wait([reading], timeout=pause_s)
            return await _status(reading) if reading.done() else "open"

    return await _repeat(request, 8, seconds)


async def frames(address: Address, seconds: float, opcode: int, text: bytes) -> Outcomes:
    """A WebSocket with tiny frames at full speed."""
    frame = bytes([0x80 | opcode, 0x80 | len(text)]) + bytes(4) + text  # the mask is 0
    end_s = time.monotonic() + seconds

    async def flood() -> str:
        async with _websocket(address) as socket:

            async def read() -> None:
                async for _ in socket:
                    pass

            reading = asyncio.create_task(read())
            while socket.protocol.close_rcvd is None and not reading.done() and time.monotonic() < end_s:
                if socket.transport.get_write_buffer_size() < 1 << 20:
                    socket.transport.write(frame * (1 << 15))
                await asyncio.wait([reading], timeout=0.01)
            close = socket.protocol.close_rcvd
            reading.cancel()
            socket.transport.abort()
        return f"closed {close.code}" if close else "open"

    return await _repeat(flood, 2, seconds)


async def half_uploads(address: Address, seconds: float) -> Outcomes:
    """More uploads than the key may have, none of which ends."""
    uploads = (_post(address, ATTACKER, _FORM + bytes(20_000_000), seconds, 25_000_000) for _ in range(12))
    return Counter(await asyncio.gather(*uploads))


async def odd_recordings(address: Address, seconds: float) -> Outcomes:
    """Recordings that are small and claim, or become, much. One of another key must be transcribed beside them."""
    silence = io.BytesIO()
    soundfile.write(silence, np.zeros(2 * 3600 * 16_000, np.int16), 16_000, format="FLAC")
    bodies = [_wav(1024, 16_000, 200_000), _wav(8, 16_000, 400_000), _wav(1, 1, 1000), silence.getvalue()]
    bodies += [_wav(1, 16_000, 32_000, stated_bytes=0x7FFE0000), _wav(2, 192_000, 1_000_000)]
    good = next(iter(read_manifest(DEFAULT_RECORDINGS))).audio.read_bytes()
    turns, end_s = itertools.cycle(bodies), time.monotonic() + seconds

    async def flood() -> str:
        form = _FORM + next(turns) + _FORM_END
        return await _post(address, ATTACKER, form, max(0.0, end_s - time.monotonic()))

    async def compare() -> str:
        return f"{await _post(address, OTHER, _FORM + good + _FORM_END, 60.0)} of the other key"

    return sum(await asyncio.gather(_repeat(flood, 8, seconds), _repeat(compare, 1, seconds)), Counter[str]())


def _wav(channels: int, rate_hz: int, size: int, stated_bytes: int | None = None) -> bytes:
    """Silence of 16 bits."""
    stated = size if stated_bytes is None else stated_bytes
    form = (1, channels, rate_hz, 2 * rate_hz * channels % 2**32, 2 * channels, 16)
    head = struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", stated + 36, b"WAVEfmt ", 16, *form, b"data", stated)
    return head + bytes(size)


async def idle_sockets(address: Address, seconds: float) -> Outcomes:
    """More WebSockets than the key may have, without audio."""
    sockets = await asyncio.gather(*(_websocket(address) for _ in range(200)), return_exceptions=True)
    await asyncio.sleep(seconds)
    outcomes: Outcomes = Counter()
    for socket in sockets:
        is_rejected = isinstance(socket, websockets.InvalidStatus)
        outcomes[str(socket.response.status_code) if is_rejected else "open"] += 1
        if isinstance(socket, websockets.ClientConnection):
            socket.transport.abort()
    return outcomes


async def idle_connections(address: Address, seconds: float) -> Outcomes:
    """Connections without a request, as many as this process may open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(_IDLE_CONNECTIONS, hard - 256)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = []
    with suppress(OSError):  # the listener's queue is full
        for _ in range(wanted):
            opened.append(await asyncio.wait_for(_connect(address), seconds))
    await asyncio.sleep(seconds)
    outcomes = Counter("closed" if reader.at_eof() else "open" for reader, _ in opened)
    for _, writer in opened:
        writer.transport.abort()
    return outcomes


async def wrong_keys(address: Address, seconds: float) -> Outcomes:
    """Requests with a wrong key."""
    return await _repeat(lambda: _request(address, "x", "GET /v1/models"), 8, seconds)


async def wrong_json(address: Address, seconds: float) -> Outcomes:
    """KServe bodies of 1 MB at most whose arrays hold values of other types."""
    fields = (
        ([1, 200_000], [0] * 199_999 + ["x" * 1000]),
        ([1.5] * 200_000, []),
        ([1, 200_000], [True, 1] * 100_000),
    )
    bodies = itertools.cycle([_infer_body(*each) for each in fields])
    return await _repeat(lambda: _request(address, ATTACKER, _INFER, next(bodies)), 1, seconds)


async def large_json(address: Address, seconds: float) -> Outcomes:
    """16 KServe bodies of 12 MB at a time. One of another key must not wait for more than half of them."""
    body, answered = _infer_body([1, 1], [0.125] * 480_000, 24), 0

    async def flood() -> str:
        nonlocal answered
        status = await _request(address, ATTACKER, _INFER, body)
        answered += 1
        return status

    async def compare() -> str:
        before = answered
        status = await _request(address, OTHER, _INFER, body)
        return f"{status} of the other key, {'in time' if answered - before <= 8 else 'late'}"

    return sum(await asyncio.gather(_repeat(flood, 16, seconds), _repeat(compare, 1, seconds)), Counter[str]())


def _infer_body(shape: list, data: list, digits: int = 0) -> bytes:
    """A request of a stream that is not open; its numbers have this many digits or more."""
    numbers = ",".join(json.dumps(value).ljust(digits, "0") for value in data)
    audio = f'{{"name":"AUDIO","datatype":"FP32","shape":{json.dumps(shape)},"data":[{numbers}]}}'
    return f'{{"parameters":{{"sequence_id":1}},"inputs":[{audio}]}}'.encode()


def _post(address: Address, key: str, form: bytes, limit_s: float, stated: int | None = None) -> Coroutine:
    """The status of a transcription; `stated`: its Content-Length, if another."""
    line = f"{_TRANSCRIBE}\r\nContent-Type: multipart/form-data; boundary=x"
    return _request(address, key, line, form, limit_s, stated)


async def _request(
    address: Address, key: str, line: str, body: bytes = b"", limit_s: float | None = None, stated: int | None = None
) -> str:
    """The status of a response; "open" where there is none in time. line: method, path and header lines."""
    method_path, *more = line.split("\r\n")
    lines = [f"{method_path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {key}", *more]
    lines += [f"Content-Length: {stated or len(body)}"] if body else []
    async with _connected(address) as (reading, writer):
        writer.write("".join(f"{one}\r\n" for one in [*lines, ""]).encode() + body)
        await asyncio.wait([reading], timeout=limit_s)
        return await _status(reading) if reading.done() else "open"


@asynccontextmanager
async def _connected(address: Address) -> AsyncIterator[tuple["asyncio.Task[bytes]", asyncio.StreamWriter]]:
    """A connection that is reset at the end, and what reads the beginning of its response."""
    reader, writer = await _connect(address)
    reading = asyncio.create_task(reader.read(4096))
    try:
        yield reading, writer
    finally:
        reading.cancel()
        writer.transport.abort()


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address[0].rpartition(":")
    return await asyncio.open_connection(host, int(port))


def _websocket(address: Address) -> websockets.connect:
    header = {"Authorization": f"Bearer {ATTACKER}"}
    return websockets.connect(f"ws://{address[0]}{_HANDSHAKE}", additional_headers=header, ping_interval=None)


async def _status(reading: "asyncio.Task[bytes]") -> str:
    """The status of a response; "reset" where the connection was closed before it could be read."""
    try:
        received = await reading
    except OSError:
        return "reset"
    return received.split()[1].decode() if received else "reset"


class Attack(NamedTuple):
    """What is done, and the outcomes that are documented."""

    run: Callable[[Address, float], Coroutine[None, None, Outcomes]]
    accepted: frozenset[str]


_APPEND = b'{"type":"input_audio_buffer.append","audio":""}'
_CUT_OFF = frozenset(("431", "reset", "open"))
"""The connection is closed while more is sent, so that the client may not see the status."""
ATTACKS = {
    "calls of 60 MiB, no key": Attack(large_calls, frozenset(["UNAUTHENTICATED"])),
    "calls of 60 MiB": Attack(partial(large_calls, key=ATTACKER), frozenset(["INVALID_ARGUMENT"])),
    "calls of 61 kB gzip, no key": Attack(
        partial(large_calls, compression=grpc.Compression.Gzip), frozenset(["UNIMPLEMENTED"])
    ),
    "a field that does not end, no key": Attack(partial(headers, piece=bytes([97]) * 65_536), _CUT_OFF),
    "fields that do not end, no key": Attack(partial(headers, piece=b"a: b\r\n" * 10_000), _CUT_OFF),
    "half headers, no key": Attack(partial(headers, piece=b"a: b\r\n", pause_s=1.0), frozenset(["408", "open"])),
    "wrong keys": Attack(wrong_keys, frozenset(["401"])),
    "tiny wrong messages": Attack(partial(frames, opcode=1, text=b"{}"), frozenset(["closed 1008", "open"])),
    "tiny messages": Attack(partial(frames, opcode=1, text=_APPEND), frozenset(["open"])),
    "pings": Attack(partial(frames, opcode=9, text=b""), frozenset(["open"])),
    "12 half uploads": Attack(half_uploads, frozenset(["429", "reset", "open"])),
    "recordings that claim much": Attack(
        odd_recordings, frozenset(["200", "400", "413", "429", "open", "reset", "200 of the other key"])
    ),
    "10,000 idle connections, no key": Attack(idle_connections, frozenset(["closed", "open"])),
    "200 idle sockets": Attack(idle_sockets, frozenset(["429", "open"])),
    "JSON of wrong types": Attack(wrong_json, frozenset(["400"])),
    "16 JSON bodies of 12 MB": Attack(large_json, frozenset(["400", "503", "400 of the other key, in time"])),
    "texts that are not UTF-8": Attack(partial(frames, opcode=1, text=b"\xff"), frozenset(["closed 1007", "open"])),
}


def attack_in_process(name: str, address: Address, seconds: float) -> Outcomes:
    """Runs an attack; the attacker's own CPU time must not delay the other stream."""
    os.nice(10)
    return asyncio.run(ATTACKS[name].run(address, seconds))


class Measured(NamedTuple):
    """One row of the table."""

    name: str
    outcomes: Outcomes
    p95_ms: float
    peak_mib: float
    """The gateway with its decoder."""


async def trial(name: str, gateway: RunningGateway, samples: np.ndarray, seconds: float) -> Measured:
    """A live stream, with this attack beside it; "" for none."""
    loop, address = asyncio.get_running_loop(), (gateway.http, gateway.grpc)
    is_over = asyncio.Event()
    watching = asyncio.create_task(_peak_mib(gateway.process_id, is_over))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        await loop.run_in_executor(executor, os.getpid)  # it has started
        attacking = loop.run_in_executor(executor, attack_in_process, name, address, seconds + 2) if name else None
        latencies_s = await _latencies(gateway, samples[: round(seconds * SAMPLE_RATE_HZ)])
        outcomes = await attacking if attacking is not None else Counter[str]()
    is_over.set()
    return Measured(name, outcomes, 1000 * float(np.percentile(latencies_s, 95)), await watching)


async def _peak_mib(process_id: int, is_over: asyncio.Event) -> float:
    process, peak = psutil.Process(process_id), 0
    while not is_over.is_set():
        with suppress(psutil.NoSuchProcess):  # a decoder's fork has ended
            peak = max(peak, sum(each.memory_info().rss for each in (process, *process.children(recursive=True))))
        await asyncio.sleep(_POLL_S)
    return peak / (1 << 20)


async def _latencies(gateway: RunningGateway, samples: np.ndarray) -> list[float]:
    """Seconds from the last audio of a chunk to its text, for a stream in real time, without its start."""
    header = {"Authorization": f"Bearer {OTHER}"}
    voice = GatewayVoice(lambda parts: realtime_texts(gateway.http, parts, additional_headers=header))
    answers = []
    async with voice:
        start_s = time.monotonic()
        for i in range(0, len(samples), PART_SAMPLES):
            await voice.send(samples[i : i + PART_SAMPLES])
            answers += await voice.poll()
            await asyncio.sleep(max(0.0, start_s + (i + PART_SAMPLES) / SAMPLE_RATE_HZ - time.monotonic()))
        await voice.finish()
        while not voice.transcript.is_complete:
            answers += await voice.poll(1.0)
    return [answer.round_trip_s for answer in answers if answer.audio_processed_s > _START_S]


def samples_of(path: Path) -> np.ndarray:
    """A recording, its channels mixed."""
    return load(path, SAMPLE_RATE_HZ).tracks[0].samples


def speech(seconds: float) -> np.ndarray:
    """The repository's recordings, one after another."""
    samples = np.concatenate([samples_of(utterance.audio) for utterance in read_manifest(DEFAULT_RECORDINGS)])
    return np.tile(samples, int(seconds * SAMPLE_RATE_HZ / len(samples)) + 1)


def gateway_flags(folder: Path, keys: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Flags of a gateway with these keys, each with its streams; writes their file into the folder."""
    lines = [f"k{i} {hashlib.sha256(key.encode()).hexdigest()} {streams}\n" for i, (key, streams) in enumerate(keys)]
    path = folder / "keys"
    path.write_text("".join(lines))
    return "--keys", str(path), "--endpoint-silence-ms", "0"


def main(words: list[str] | None = None) -> int:
    """Runs the attacks; returns the exit status: 1 where a limit was exceeded, 2 where they could not run."""
    parser = argparse.ArgumentParser(prog="trials.gateway_attack", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=15.0, metavar="S", help="time of each attack (15)")
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="NAME", help="(all)")
    parser.add_argument("--max-ratio", type=float, default=5.0, metavar="R", help="p95 to that without an attack (5)")
    parser.add_argument("--max-memory", type=float, default=600.0, metavar="MIB", help="of the gateway (600)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON, too")
    args = parser.parse_args(words)
    try:
        trials, errors = run(args.only, args.seconds)
    except PenstockError as error:
        print(f"gateway_attack: error: {error}", file=sys.stderr)
        return 2
    undisturbed = float(np.median([each.p95_ms for each in trials if not each.name]))
    rows = [(each.name or "none", _shown(each.outcomes), f"{each.p95_ms:.0f} ms", f"{each.p95_ms / undisturbed:.2f}",
             f"{each.peak_mib:.0f} MiB") for each in trials]  # fmt: skip
    print(markdown_table(("attack", "outcomes", "p95 of the other stream", "ratio", "gateway, peak"), rows))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([each._asdict() for each in trials], indent=1))
    faults = [fault for each in trials for fault in _faults(each, undisturbed * args.max_ratio, args.max_memory)]
    faults += [f"the gateway's log: {line[:200]}" for line in errors]
    print("\n".join(faults) or "passed")
    return 1 if faults else 0


def run(names: list[str], seconds: float) -> tuple[list[Measured], list[str]]:
    """The trials, and before and after them one without an attack; errors in the gateway's log."""
    samples = speech(seconds)
    with tempfile.TemporaryDirectory(prefix="penstock-attack-") as name, ExitStack() as stack:
        folder = Path(name)
        server = stack.enter_context(fresh_server(ServerPlan(BUNDLE, None, 16, 1)))
        flags = gateway_flags(folder, _KEYS)
        gateway = stack.enter_context(fresh_gateway(server.url("grpc"), *flags, kept_log=folder / "log"))
        trials = [asyncio.run(trial(name, gateway, samples, seconds)) for name in ("", *names, "")]
        stack.close()
        lines = (folder / "log").read_text(encoding="utf-8").splitlines()
        return trials, [line for line in lines if level_of(line) in (None, "error")]


def _shown(outcomes: Outcomes) -> str:
    return ", ".join(f"{count} {name}" for name, count in outcomes.most_common()) or "-"


def _faults(each: Measured, max_p95_ms: float, max_mib: float) -> list[str]:
    wrong = sorted(set(each.outcomes) - ATTACKS[each.name].accepted) if each.name else []
    faults = [f"{each.name}: outcome {name}" for name in wrong]
    if each.p95_ms > max_p95_ms:
        faults.append(f"{each.name}: p95 {each.p95_ms:.0f} ms; accepted: {max_p95_ms:.0f} ms")
    if each.peak_mib > max_mib:
        faults.append(f"{each.name}: {each.peak_mib:.0f} MiB; accepted: {max_mib:.0f} MiB")
    return faults


if __name__ == "__main__":
    sys.exit(main())
