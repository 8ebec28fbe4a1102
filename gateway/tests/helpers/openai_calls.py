"""Requests to `/v1/audio/transcriptions`, and what tests look at in the replies."""

import asyncio
import json

from client.tests.helpers.sound_files import sound_file
from gateway.tests.helpers.fake_streams import speech

AUDIO = speech(0.3, 1.2, 0.2)
"""Three words, a pause, two words."""


def encoded(samples=AUDIO, form="WAV"):
    return sound_file(samples, form=form)


async def post(client, file=None, **fields):
    files = {} if file is None else {"file": ("speech.bin", file)}
    return await client.post("/v1/audio/transcriptions", data={"model": "whisper-1", **fields}, files=files)


async def unfinished_upload(served, size=1000, path="/v1/audio/transcriptions"):
    """(reader, writer) of a request with the API key `sk-test`, of whose form only the first bytes arrive."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http_port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-test\r\n"
    body = f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {size}\r\n\r\n--x\r\n"
    writer.write((head + body).encode())
    return reader, writer


def error(response, status):
    assert response.status_code == status, response.text
    body = response.json()["error"]
    assert body["message"]
    return body["code"], body["param"]


def events_of(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
