"""Client events of OpenAI's dialect, and the events that they get: of a protocol, and of a socket."""

import asyncio
import base64
import json

import websockets


def send(protocol, kind, **fields):
    return list(protocol.receive(json.dumps({"type": kind, **fields})))


def append(protocol, data=bytes(4800), **fields):
    return send(protocol, "input_audio_buffer.append", audio=base64.b64encode(data).decode(), **fields)


def update(protocol, transcription=None, event_id="client_1", include=None, **audio_input):
    if transcription is not None:
        audio_input["transcription"] = transcription
    session = {"type": "transcription", "audio": {"input": audio_input}}
    if include is not None:
        session["include"] = include
    return send(protocol, "session.update", session=session, event_id=event_id)


def error(actions):
    (event,) = actions
    assert event["type"] == "error"
    return event["error"]


async def receive(socket, kind):
    """The next event of this kind."""
    while True:
        event = json.loads(await asyncio.wait_for(socket.recv(), 60))
        if event["type"] == kind:
            return event


async def closed(socket):
    """The code that the server closes with, and the events before."""
    events = []
    try:
        while True:
            events.append(json.loads(await asyncio.wait_for(socket.recv(), 60)))
    except websockets.ConnectionClosed as end:
        return end.rcvd.code, events
