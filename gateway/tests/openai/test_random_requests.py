"""Random requests on real sockets: each answer is a status of docs/gateway.md below 500, in its documented form."""

import asyncio
import json
import random
from dataclasses import dataclass

import pytest

from gateway.tests.helpers.random_audio import recordings, spoiled
from gateway.tests.helpers.random_tests import CheckedStreams, check_log, make_cases
from gateway.tests.helpers.running import running
from penstock_gateway.errors import GatewayCode
from penstock_gateway.openai.request import TranscriptionForm

CREATE = "/v1/audio/transcriptions"
PATHS = (
    CREATE, "/v1/models", "/v1/models/fake-asr", "/v1/models/whisper-1", "/v1/models/%00%ff/..", "/v1/nothing", "/",
    "/v1/realtime", "/v1/realtime/client_secrets", "/v1/realtime/transcription_sessions", "/health/live",
    "/v1/audio/transcriptions/?a=b&a=%zz", "*", "/%", "/v1/models/" + "x" * 5000,
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "get", "\x7f")
VALUES = (
    "", "auto", "true", "FALSE", "json", "text", "srt", "vtt", "verbose_json", "logprobs", "word", "segment", "en",
    "de", "server_vad", "500", "-1", "9" * 40, "²", "fake-asr", "x" * 2000, "é\0\n\r", "Łódź", "\ud800", "[]", "1e999",
    '{"type": "server_vad", "silence_duration_ms": 500}', '{"type": "server_vad", "silence_duration_ms": [[]]}',
    '{"type":' + "[" * 5000,
)  # fmt: skip
FIELDS = [each.alias or name for name, each in TranscriptionForm.model_fields.items()]
NAMES = (
    *FIELDS, "languages", "keywords", "include", "prompt", "temperature", "имя", "a\rb", "", 'a"b', "\ud800", "x" * 300,
)  # fmt: skip
BODIES = (
    "", "{}", "[]", "{", "null", '{"session": {}}', '{"session": {"type": "transcription"}}', "[" * 10_000,
    '{"expires_after": {"seconds": 60}}', '{"expires_after": {"seconds": 1e999}}', '{"session": {"audio": NaN}}',
    '{"session": {"audio": {"input": {"transcription": {"keywords": ["\\ud800", "a"]}}}}}',
    '{"word_boosting": {"word_boosting_list": [{"boost": "Infinity"}]}, "input_audio_format": []}',
)  # fmt: skip
TYPES = (
    "multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=other",
    "multipart/form-data; boundary=x; charset=idna", "multipart/form-data; boundary=x; charset=utf-7",
    "multipart/form-data; boundary=x; charset=unicode_escape", "multipart/mixed; boundary=x", "application/json",
    "application/x-www-form-urlencoded", "text/plain", "", ";", "é", "multipart/form-data; boundary*=utf-8''x",
)  # fmt: skip
HEADERS = (
    b"Authorization: Bearer ek_\xe9", b"Origin: null", b"Expect: 100-continue", b"A: \xff",
    b"Sec-WebSocket-Protocol: openai-insecure-api-key.x, realtime-token.y",
)  # fmt: skip


@pytest.fixture
def streams():
    return CheckedStreams()


@dataclass
class Request:
    """The bytes of a request."""

    data: bytes
    is_whole: bool = True
    """False: the client disconnects after these bytes, and may get no answer."""


def random_part(rng: random.Random, is_file: bool) -> bytes:
    """One part of a form."""
    if is_file:
        name, content = "file", random_file(rng)
    else:
        name = rng.choice(NAMES)
        content = rng.choice(VALUES).encode(errors="surrogatepass")
    disposition = f'form-data; name="{name}"'.encode(errors="surrogatepass")
    if name == "file" and rng.random() < 0.95:
        disposition += b'; filename="speech.wav"'
    lines = [b"Content-Disposition: " + disposition]
    accident = rng.random()
    if accident < 0.02:
        lines = []
    elif accident < 0.04:
        lines = [b"Content-Disposition: form-data"]
    elif accident < 0.06:
        lines.append(b"Content-Type: \xff\xfe")
    elif accident < 0.08:
        lines.append(b"X" * 3000 + b": y")
    elif accident < 0.10:
        lines.append(b"no colon")
    return b"\r\n".join([*lines, b"", content])


def random_file(rng: random.Random) -> bytes:
    """Makes a client's upload."""
    kind = rng.random()
    if kind < 0.5:
        return spoiled(rng.choice(recordings()), rng)
    if kind < 0.8:
        return rng.choice((b"", b"RIFF", b"fLaC", b"OggS", b"ID3", b"\xff\xfb")) + rng.randbytes(rng.randrange(40))
    return rng.randbytes(rng.choice((0, 1, 1000, 100_000)))


def random_form(rng: random.Random) -> bytes:
    """A form in parts whose boundary is x."""
    kinds = [True, *[False] * rng.choice((0, 1, 2, 4))] if rng.random() < 0.8 else rng.choices((True, False), k=3)
    rng.shuffle(kinds)
    parts = [random_part(rng, is_file) for is_file in kinds]
    if rng.random() < 0.005:
        parts += [b'Content-Disposition: form-data; name="keywords[]"\r\n\r\na'] * 2300
    body = b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + b"--x--\r\n"
    accident = rng.random()
    if accident < 0.05:
        body = body[: rng.randrange(len(body))]
    elif accident < 0.08:
        body = body.replace(b"\r\n", b"\n")
    elif accident < 0.15:
        changed = bytearray(body)
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(len(body))] = rng.randrange(256)
        body = bytes(changed)
    return body


def random_request(number: int) -> Request:
    """The request of this number."""
    rng = random.Random(number)
    method, path, kind = "POST", CREATE, "multipart/form-data; boundary=x"
    body = random_form(rng)
    if rng.random() < 0.25:
        method, path = rng.choice(METHODS), rng.choice(PATHS)
    if rng.random() < 0.15:
        kind = rng.choice(TYPES)
    if path != CREATE or rng.random() < 0.1:
        body = rng.choice((*BODIES, *VALUES)).encode(errors="surrogatepass")
    elif "urlencoded" in kind:
        body = b"&".join(b"%s=%s" % (name, name) for name in (b"model", b"%ff", b"", b"file", b"a;b"))
    headers = [b"Host: localhost", b"Connection: close", b"Content-Type: " + kind.encode("latin-1")]
    if rng.random() < 0.1:
        headers.append(rng.choice(HEADERS))
    if rng.random() < 0.2:
        headers.append(b"Transfer-Encoding: chunked")
        size = rng.randrange(1, 5000)
        blocks = [body[start : start + size] for start in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(block), block) for block in blocks) + b"0\r\n\r\n"
    else:
        headers.append(b"Content-Length: %d" % len(body))
    target = f"{method} {path} HTTP/1.1".encode("latin-1")
    data = b"\r\n".join([target, *headers, b"", body])
    accident = rng.random()
    if accident < 0.1:
        return Request(data[: rng.randrange(len(data))], is_whole=False)
    if accident < 0.15:
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(min(300, len(data)))] = rng.randrange(256)
        return Request(bytes(changed), is_whole=False)
    return Request(data)


async def answer(port: int, request: Request) -> bytes:
    """All bytes that the gateway sends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.data)
        if not request.is_whole:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), 120)
    except ConnectionError:  # the gateway had answered before it read all
        return b""
    finally:
        writer.close()


def check(answered: bytes, request: Request) -> str:
    """The code or the status of an answer; AssertionError for one that is not documented."""
    head, _, body = answered.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    if not head:
        return "none"
    status = int(head.split()[1])
    assert status < 500, answered[:2000]
    if status >= 400:
        if request.data.startswith(b"HEAD"):
            return f"http_{status}"
        error = json.loads(body)["error"]
        assert error["message"]
        documented = error["code"].upper() in GatewayCode.__members__ or error["code"] == f"http_{status}"
        assert documented, error
        return error["code"]
    if b"text/event-stream" in head:
        assert b"transcript.text.done" in body or b'"error"' in body, body
    return str(status)


async def send(gateway, numbers):
    """Makes the requests of these numbers; returns how often each answer came."""
    async with running(gateway) as served:

        async def one(number: int) -> str:
            request = random_request(number)
            return check(await answer(served.http_port, request), request)

        async def neighbour() -> None:
            assert b'"text": "w0 w1 w2"' in await answer(served.http_port, Request(well_formed()))

        return await make_cases(gateway, numbers, one, neighbour)


def well_formed() -> bytes:
    """A request with 0.3 s of speech in a WAV file."""
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    body = part + recordings()[0] + b"\r\n--x--\r\n"
    head = f"POST {CREATE} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Content-Type: multipart/form-data; boundary=x\r\n\r\n" + body


async def test_random_requests(gateway, caplog, capfd):
    answers = await send(gateway, range(160))
    assert answers.keys() >= {"200", "field_invalid", "audio_invalid", "http_404", "http_405", "none"}
    check_log(caplog, capfd)
