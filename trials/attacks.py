"""What a client may try against a gateway: calls, connections, uploads and messages, each for some seconds."""

import asyncio
import io
import itertools
import json
import os
import resource
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

import grpc
import numpy as np
import soundfile
import websockets

from loadtest.options import DEFAULT_RECORDINGS
from penstock.evaluation.manifest import read_manifest

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
