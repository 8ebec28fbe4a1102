"""Client events of OpenAI's dialect, and the error that one gets."""

import base64
import json


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
