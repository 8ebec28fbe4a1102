"""Attacks of a client on a gateway: calls, connections, uploads and messages, each for some seconds."""

import asyncio
import os
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

import grpc
import websockets

ATTACKER, OTHER = "sk-attacker", "sk-other"
_MESSAGE_BYTES = 60 << 20
_RECOGNIZE = "/nvidia.riva.asr.RivaSpeechRecognition/Recognize"
_HANDSHAKE = "/v1/realtime?intent=transcription"
_TRANSCRIBE = "POST /v1/audio/transcriptions"
_FORM = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
_FORM_END = b"\r\n--x--\r\n"
_IDLE_CONNECTIONS = 10_000
_BURST_BYTES = 2 << 20
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


async def large_calls(address: Address, seconds: float, key: str = "") -> Outcomes:
    """Recognize with 60 MiB of zeros, which are no message."""
    message = bytes(_MESSAGE_BYTES)
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    metadata = (("authorization", f"Bearer {key}"),) if key else ()

    async def recognize() -> str:
        async with grpc.aio.insecure_channel(address[1], options) as channel:
            call = channel.unary_unary(_RECOGNIZE)(message, metadata=metadata)
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
            await _end(reading)
            socket.transport.abort()
        return f"closed {close.code}" if close else "open"

    return await _repeat(flood, 2, seconds)


async def half_uploads(address: Address, seconds: float) -> Outcomes:
    """More uploads than the key may have, none of which ends."""
    uploads = (_post(address, ATTACKER, _FORM + bytes(20_000_000), seconds, 25_000_000) for _ in range(12))
    return Counter(await asyncio.gather(*uploads))


async def upload(address: Address, body: bytes) -> str:
    """The status of a transcription with the other key."""
    return await _post(address, OTHER, _FORM + body + _FORM_END, 60.0)


async def probe(address: Address) -> str:
    """The status of readiness."""
    return await _request(address, "", "GET /health/ready", limit_s=60.0)


async def http2(address: Address, seconds: float, frame: bytes, before: bytes = b"", connections: int = 4) -> Outcomes:
    """Frames of HTTP/2 at full speed, over connections that are made again where they are closed."""
    end_s = time.monotonic() + seconds
    host, _, port = address[1].rpartition(":")

    async def flood() -> str:
        reader, writer = await asyncio.open_connection(host, int(port))
        reading = asyncio.create_task(reader.read(-1))
        with suppress(OSError):
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4) + before)
            while not reading.done() and time.monotonic() < end_s:
                writer.write(frame * (_BURST_BYTES // len(frame)))
                with suppress(TimeoutError):
                    await asyncio.wait_for(writer.drain(), 0.1)
        was_closed = reading.done()
        await _end(reading)
        writer.transport.abort()
        return "closed" if was_closed else "open"

    return await _repeat(flood, connections, seconds)


def _frame(kind: int, payload: bytes = b"", stream: int = 0, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


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


async def idle_connections(address: Address, seconds: float, port: int = 0) -> Outcomes:
    """Connections without a request, as many as this process may open. port: 0 is that of HTTP, 1 of gRPC."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(_IDLE_CONNECTIONS, hard - 256)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = []
    with suppress(OSError):  # the listener's queue is full
        for _ in range(wanted):
            opened.append(await asyncio.wait_for(_connect(address[port:]), seconds))
    await asyncio.sleep(seconds)
    outcomes = Counter("closed" if reader.at_eof() else "open" for reader, _ in opened)
    for _, writer in opened:
        writer.transport.abort()
    return outcomes


async def wrong_keys(address: Address, seconds: float) -> Outcomes:
    """Requests with a wrong key."""
    return await _repeat(lambda: _request(address, "x", "GET /v1/models"), 8, seconds)


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
    local = ("127.0.0.2", 0) if key in (OTHER, "") else None  # limits are of an address, too
    async with _connected(address, local) as (reading, writer):
        writer.write("".join(f"{one}\r\n" for one in [*lines, ""]).encode() + body)
        await asyncio.wait([reading], timeout=limit_s)
        return await _status(reading) if reading.done() else "open"


@asynccontextmanager
async def _connected(
    address: Address, local: tuple[str, int] | None = None
) -> AsyncIterator[tuple["asyncio.Task[bytes]", asyncio.StreamWriter]]:
    """A connection that is reset at the end, and what reads the beginning of its response."""
    reader, writer = await _connect(address, local)
    reading = asyncio.create_task(reader.read(4096))
    try:
        yield reading, writer
    finally:
        await _end(reading)
        writer.transport.abort()


async def _end(task: asyncio.Task) -> None:
    """Cancels it and takes its error, which asyncio would print."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _connect(
    address: tuple[str, ...], local: tuple[str, int] | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address[0].rpartition(":")
    return await asyncio.open_connection(host, int(port), local_addr=local)


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
    """An attack, and the outcomes that are documented."""

    run: Callable[[Address, float], Coroutine[None, None, Outcomes]]
    accepted: frozenset[str]


_APPEND = b'{"type":"input_audio_buffer.append","audio":""}'
_CUT_OFF = frozenset(("431", "reset", "open"))
"""The connection is closed while more is sent, so that the client may not see the status."""
_HEADERS = bytes((0x83, 0x86, 0x44, 2)) + b"/a" + bytes((0x41, 1)) + b"x"
"""POST, http, path and authority in HPACK."""
_PING = _frame(6, bytes(8))
_RESETS = b"".join(_frame(1, _HEADERS, i, 4) + _frame(3, bytes(4), i) for i in range(1, 2000, 2))
_HTTP2 = (
    ("PINGs", _PING, b""),
    ("SETTINGS", _frame(4), b""),
    ("WINDOW_UPDATEs of 0", _frame(8, bytes(4)), b""),
    ("WINDOW_UPDATEs of 1", _frame(8, bytes((0, 0, 0, 1))), b""),
    ("CONTINUATIONs", _frame(9, stream=1), _frame(1, _HEADERS, 1)),
    ("resets", _frame(3, bytes(4), 1), _RESETS),
)
"""Name, frame, and what is sent before."""
ATTACKS = {
    "calls of 60 MiB, no key": Attack(large_calls, frozenset(["UNAUTHENTICATED"])),
    "calls of 60 MiB": Attack(partial(large_calls, key=ATTACKER), frozenset(["INVALID_ARGUMENT"])),
    "a field that does not end, no key": Attack(partial(headers, piece=bytes([97]) * 65_536), _CUT_OFF),
    "half headers, no key": Attack(partial(headers, piece=b"a: b\r\n", pause_s=1.0), frozenset(["408", "open"])),
    "wrong keys": Attack(wrong_keys, frozenset(["401"])),
    "tiny wrong messages": Attack(partial(frames, opcode=1, text=b"{}"), frozenset(["closed 1008", "open"])),
    "tiny messages": Attack(partial(frames, opcode=1, text=_APPEND), frozenset(["open"])),
    "pings": Attack(partial(frames, opcode=9, text=b""), frozenset(["open"])),
    "12 half uploads": Attack(half_uploads, frozenset(["429", "reset", "open"])),
    "10,000 idle connections, no key": Attack(idle_connections, frozenset(["closed", "open"])),
    "the same at the gRPC port": Attack(partial(idle_connections, port=1), frozenset(["closed", "open"])),
    **{
        f"HTTP/2 {name}, no key": Attack(partial(http2, frame=frame, before=before), frozenset(["closed", "open"]))
        for name, frame, before in _HTTP2
    },
    "HTTP/2 PINGs of one connection, no key": Attack(
        partial(http2, frame=_PING, connections=1), frozenset(["closed", "open"])
    ),
    "200 idle sockets": Attack(idle_sockets, frozenset(["429", "open"])),
    "texts that are not UTF-8": Attack(partial(frames, opcode=1, text=b"\xff"), frozenset(["closed 1007", "open"])),
}


def attack_in_process(name: str, address: Address, seconds: float) -> Outcomes:
    """Runs an attack; the attacker's own CPU time must not delay the other stream."""
    os.nice(10)
    return asyncio.run(ATTACKS[name].run(address, seconds))
