"""The WebSocket on real sockets, with fake streams: handshake, limits, backpressure, and routes beside it."""

import asyncio
import base64
import hashlib
import json
import random
import socket as sockets
import time
from dataclasses import replace
from types import SimpleNamespace

import httpx2
import pytest
import websockets

from client.tests.helpers.event_loop import until
from gateway.tests.helpers.fake_streams import GROUP, FakeStreams, speech
from gateway.tests.helpers.realtime_events import closed, receive
from gateway.tests.helpers.running import http_client, running
from penstock_gateway import limits
from penstock_gateway.http.protocol import WebSocketProtocol
from penstock_gateway.realtime import connection
from penstock_gateway.security.keys import ApiKey, KeyRing

PATH = "/v1/realtime?intent=transcription"
KEYS = KeyRing([(ApiKey("team", 4), hashlib.sha256(b"right").digest())])
OTHER = replace(GROUP, name="other")
COMPLETED = "conversation.item.input_audio_transcription.completed"


async def append(socket, samples, piece=2400):
    for start in range(0, len(samples), piece):
        data = (samples[start : start + piece] * 32767).astype("<i2").tobytes()
        audio = base64.b64encode(data).decode()
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))


async def send(socket, kind, **fields):
    await socket.send(json.dumps({"type": kind, **fields}))


async def test_words_of_audio_at_24_khz_with_an_endpoint_and_a_commit(gateway, streams):
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        await receive(socket, "session.created")
        await send(socket, "session.update", session={"type": "transcription"})
        await receive(socket, "session.updated")
        await append(socket, speech(0.5, 1.2, 0.3, rate_hz=24_000))
        first = await receive(socket, COMPLETED)
        await send(socket, "input_audio_buffer.commit")
        second = await receive(socket, COMPLETED)
    words = f"{first['transcript']} {second['transcript']}".split()
    assert words == [f"w{i}" for i in range(len(words))]
    assert 8 <= len(words) <= 10  # the edges of resampled speech may touch one more frame each
    assert sum(map(len, streams.opened[0].pushed)) == 32_000, "a commit has all audio before it"


async def test_a_stream_goes_on_with_new_keywords_and_not_with_new_audio(gateway, streams):
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        form = {"type": "audio/pcm", "rate": 16000}
        await send(socket, "session.update", session={"audio": {"input": {"format": form}}})
        await append(socket, speech(0.2), 1600)
        keywords = {"keywords": ["rubout"]}
        await send(socket, "session.update", session={"audio": {"input": {"transcription": keywords}}})
        assert (await receive(socket, COMPLETED))["transcript"] == "w0 w1"
        await append(socket, speech(0.1), 1600)
        await send(socket, "input_audio_buffer.commit")
        assert (await receive(socket, COMPLETED))["transcript"] == "w2"
        await append(socket, speech(0.1), 1600)
        form["rate"] = 24000
        await send(socket, "session.update", session={"audio": {"input": {"format": form}}})
        assert (await receive(socket, COMPLETED))["transcript"] == "w3"
        await append(socket, speech(0.15, rate_hz=24_000), 2400)
        await send(socket, "input_audio_buffer.commit")
        assert (await receive(socket, COMPLETED))["transcript"] == "w0"
    assert [stream.options.phrases for stream in streams.opened] == [(("rubout", 1.5),)] * 2


async def test_an_append_of_3_mib(gateway):
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        piece = (3 << 20) // 2
        await append(socket, speech(0.3, 65.3, rate_hz=24_000)[:piece], piece)
        assert (await receive(socket, COMPLETED))["transcript"].startswith("w0 w1 w2")


async def test_pings_count_and_empty_appends_take_no_slot(gateway, streams, monkeypatch):
    now_s = time.monotonic()
    monkeypatch.setattr(limits, "TICK_S", 0.02)
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        await receive(socket, "session.created")
        monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: now_s))
        for _ in range(5):
            await append(socket, speech(0.0), 1)
            await send(socket, "input_audio_buffer.append", audio="")
            await (await socket.ping())
            now_s = time.monotonic() + limits.MAX_IDLE_S - 10
            await asyncio.sleep(0.05)
        assert not streams.opened
        now_s += 20 + limits.MAX_IDLE_S
        assert (await closed(socket))[0] == 4408


async def test_a_client_that_has_vanished_is_dropped(gateway, streams, monkeypatch):
    """The client answers no ping."""
    assert limits.KEEP_ALIVE_S + limits.UNRESPONSIVE_S == 25
    monkeypatch.setattr(limits, "KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr(limits, "UNRESPONSIVE_S", 0.2)
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        await append(socket, speech(0.2, rate_hz=24_000))
        await receive(socket, "input_audio_buffer.speech_started")
        socket.transport.pause_reading()
        await until(lambda: streams.opened[0].is_cancelled)
        socket.transport.abort()


async def test_commits_without_audio_and_odd_binary_messages(gateway):
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        for _ in range(2 * limits.MAX_ERRORS_IN_A_ROW):
            await send(socket, "input_audio_buffer.commit")
            assert (await receive(socket, "error"))["error"]["code"] == "input_audio_buffer_commit_empty"
        data = (speech(0.35, rate_hz=24_000) * 32767).astype("<i2").tobytes()
        for start in range(0, len(data), 999):
            await socket.send(data[start : start + 999])
        await send(socket, "input_audio_buffer.commit")
        assert (await receive(socket, COMPLETED))["transcript"] == "w0 w1 w2"


async def flood(socket):
    """Wrong events, each of which is answered by an error with its long id, and right ones between them."""
    while True:
        await send(socket, "no", event_id="x" * 30_000)
        await send(socket, "input_audio_buffer.append", audio="")


async def test_a_client_that_does_not_read_is_dropped(gateway, streams, monkeypatch):
    """The kernel's buffers fill up, then a send of the gateway waits for longer than the limit."""
    monkeypatch.setattr(limits, "UNRESPONSIVE_S", 0.2)
    monkeypatch.setattr(limits, "TICK_S", 0.05)
    async with running(gateway) as served:
        slow = sockets.socket()
        slow.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", served.http_port))
        async with websockets.connect(served.ws_url + PATH, sock=slow, max_queue=1, ping_interval=None) as socket:
            await append(socket, speech(0.2, rate_hz=24_000))
            await until(lambda: streams.opened)
            sending = asyncio.create_task(flood(socket))
            await until(lambda: streams.opened[0].is_cancelled)
            sending.cancel()
            socket.transport.abort()


async def test_a_stream_without_room_stops_the_reading_of_the_socket_and_its_keepalive(gateway, streams, monkeypatch):
    late, keepalive_timeout = asyncio.Event(), WebSocketProtocol.keepalive_timeout

    def note(self):
        late.set()
        keepalive_timeout(self)

    monkeypatch.setattr(WebSocketProtocol, "keepalive_timeout", note)
    make = WebSocketProtocol.__init__

    def make_with_short_limits(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.ping_interval = self.ping_timeout = 0.05

    monkeypatch.setattr(WebSocketProtocol, "__init__", make_with_short_limits)
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        await append(socket, speech(0.2, rate_hz=24_000))
        await receive(socket, "input_audio_buffer.speech_started")
        streams.opened[0].room.clear()
        sending = asyncio.create_task(append(socket, speech(600.0, rate_hz=24_000), piece=24_000))
        await asyncio.wait_for(late.wait(), 60)
        await asyncio.sleep(0.5)
        assert not sending.done()
        assert len(streams.opened[0].pushed) <= 2
        sending.cancel()
        socket.transport.abort()
        streams.opened[0].room.set()


async def rejected(url, **options):
    with pytest.raises(websockets.InvalidStatus) as caught:
        await websockets.connect(url, **options)
    return caught.value.response


async def test_handshakes_that_are_rejected(make_gateway, streams):
    async with running(make_gateway(KEYS)) as served:
        url = served.ws_url + PATH
        right = {"Authorization": "Bearer right"}
        assert (await rejected(url, additional_headers=right, origin="https://evil.example")).status_code == 403
        response = await rejected(served.ws_url + "/v1/realtime?intent=conversation", additional_headers=right)
        assert (response.status_code, json.loads(response.body)["error"]["param"]) == (400, "intent")


async def test_a_browser_connects_with_a_client_secret(make_gateway, streams):
    async with running(make_gateway(KEYS)) as served, httpx2.AsyncClient(base_url=served.url, timeout=60) as http:
        right = {"Authorization": "Bearer right"}
        body = {"expires_after": {"anchor": "created_at", "seconds": 60}, "session": {"type": "transcription"}}
        made = (await http.post("/v1/realtime/client_secrets", json=body, headers=right)).json()
        assert made["session"]["type"] == "transcription"
        offered = ["realtime", f"openai-insecure-api-key.{made['value']}"]
        origin = f"http://127.0.0.1:{served.http_port}"
        async with websockets.connect(served.ws_url + PATH, subprotocols=offered, origin=origin) as socket:
            assert socket.subprotocol == "realtime"
            await append(socket, speech(0.2, rate_hz=24_000))
            await receive(socket, "input_audio_buffer.speech_started")
        beta = [*offered, "openai-beta.realtime-v1"]  # as browsers offer it; the header is that of other clients
        connecting = websockets.connect(
            served.ws_url + PATH, subprotocols=beta, origin=origin, additional_headers={"OpenAI-Beta": "realtime=v1"}
        )
        async with connecting as socket:
            await send(socket, "session.update", session=body["session"])
            await append(socket, speech(0.2, rate_hz=24_000))
            await receive(socket, "input_audio_buffer.speech_started")
        assert [stream.key for stream in streams.opened] == [ApiKey("team", 4)] * 2


async def test_a_session_of_a_retired_shape_gets_one_error_behind_the_text_so_far(gateway):
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        await append(socket, speech(0.2, rate_hz=24_000))
        await send(socket, "session.update", model="fake-asr", event_id="client_7")
        await append(socket, speech(0.2, rate_hz=24_000))
        code, events = await closed(socket)
    assert (code, [event["type"].rpartition(".")[2] for event in events[-2:]]) == (1008, ["completed", "error"])
    assert (events[-1]["error"]["code"], events[-1]["error"]["event_id"]) == ("shape_retired", "client_7")
    assert sum(event["type"] == "error" for event in events) == 1


async def test_a_client_secret_has_the_settings_of_its_session(make_gateway, streams):
    """Another gateway with the same signing key knows them; `session.update` changes them."""
    given = {
        "type": "transcription",
        "audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}, "turn_detection": None,
                            "transcription": {"keywords": ["Łódź"]}}},
    }  # fmt: skip
    async with http_client(make_gateway(KEYS)) as http:
        made = await http.post(
            "/v1/realtime/client_secrets", json={"session": given}, headers={"Authorization": "Bearer right"}
        )
    value, shown = made.json()["value"], made.json()["session"]
    offered = ["realtime", f"openai-insecure-api-key.{value}"]
    async with running(make_gateway(KEYS)) as served:
        async with websockets.connect(served.ws_url + PATH, subprotocols=offered) as socket:
            created = (await receive(socket, "session.created"))["session"]
            assert created | {"id": None} == shown | {"id": None}
            await append(socket, speech(0.2), 1600)
            await send(socket, "input_audio_buffer.commit")
            assert (await receive(socket, COMPLETED))["transcript"] == "w0 w1"
            await send(socket, "session.update", session={"audio": {"input": {"transcription": {"keywords": []}}}})
            await append(socket, speech(0.1), 1600)
            await send(socket, "input_audio_buffer.commit")
            assert (await receive(socket, COMPLETED))["transcript"] == "w2"
        headers = {"Authorization": f"Bearer {value}"}
        async with websockets.connect(served.ws_url + PATH, additional_headers=headers) as socket:
            assert (await receive(socket, "session.created"))["session"]["audio"] == created["audio"]
    assert [(stream.options.phrases, stream.options.endpoint_silence_ms) for stream in streams.opened] == [((), 0)]


async def test_the_address_names_the_first_model(gateway, streams):
    streams.group = lambda name: {"": GROUP, "other": OTHER}.get(name) or FakeStreams().group(name)
    async with running(gateway) as served:
        for words in ("?model=other", "?model=other&intent=transcription"):
            async with websockets.connect(f"{served.ws_url}/v1/realtime{words}") as socket:
                session = (await receive(socket, "session.created"))["session"]
                assert session["audio"]["input"]["transcription"]["model"] == "other"
                await append(socket, speech(0.2, rate_hz=24_000))
                await receive(socket, "input_audio_buffer.speech_started")
        offered = ["realtime", "realtime-token.none"]
        async with websockets.connect(f"{served.ws_url}/v1/realtime?model=other", subprotocols=offered) as socket:
            await append(socket, speech(0.2), 1600)
            await receive(socket, "conversation.item.input_audio_transcription.delta")
        response = await rejected(f"{served.ws_url}/v1/realtime?model=none")
        assert (response.status_code, json.loads(response.body)["error"]["code"]) == (404, "model_not_found")
    assert [stream.options.model for stream in streams.opened] == ["other"] * 3


async def test_a_session_of_a_secret_that_is_no_longer_accepted_is_rejected(make_gateway):
    secret, _ = make_gateway(KEYS).access.secrets.create(ApiKey("team", 4), session={"openai": {"type": "realtime"}})
    async with running(make_gateway(KEYS)) as served:
        response = await rejected(served.ws_url + PATH, additional_headers={"Authorization": f"Bearer {secret}"})
        assert (response.status_code, json.loads(response.body)["error"]["param"]) == (400, "session.type")


async def test_a_token_of_riva_has_the_settings_of_its_session(make_gateway, streams):
    boosting = {"enable_word_boosting": True, "word_boosting_list": [{"phrases": ["rubout"], "boost": 50}]}
    right = {"Authorization": "Bearer right"}
    async with running(make_gateway(KEYS)) as served, httpx2.AsyncClient(base_url=served.url, timeout=60) as http:
        path = "/v1/realtime/transcription_sessions"
        wrong = await http.post(path, json={"input_audio_params": {"num_channels": 9}}, headers=right)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "session.input_audio_params.num_channels")
        wrong = await http.post(path, json={"input_audio_format": "pcm16"}, headers=right)
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "shape_retired")
        body = {"word_boosting": boosting, "endpointing_config": {"stop_history": 500}}
        session = (await http.post(path, json=body, headers=right)).json()
        assert session["word_boosting"] == boosting
        offered = ["realtime", f"realtime-token.{session['client_secret']['value']}"]
        async with websockets.connect(served.ws_url + PATH, subprotocols=offered) as socket:
            await receive(socket, "conversation.created")
            await append(socket, speech(0.2), 1600)
            await send(socket, "input_audio_buffer.done")
            assert (await receive(socket, COMPLETED))["transcript"] == "w0 w1"
    assert streams.opened[0].options.phrases == (("rubout", 1.0),)
    assert streams.opened[0].options.endpoint_silence_ms == 500


async def test_client_secrets_that_are_rejected(make_gateway):
    cases = [
        (b"{}", "Bearer ek_abc", 401, None),
        (b"[1]", "Bearer right", 400, "body"),
        (b'{"expires_after": {"seconds": 5}}', "Bearer right", 400, "expires_after.seconds"),
        (b'{"expires_after": {"anchor": "now"}}', "Bearer right", 400, "expires_after.anchor"),
        (b'{"session": {"type": "realtime"}}', "Bearer right", 400, "session.type"),
        (b'{"session": {"turn_detection": null}}', "Bearer right", 400, "session.turn_detection"),
        (b'{"sessions": {"type": "transcription"}}', "Bearer right", 400, "body.sessions"),
        (b'{"session": {"include": ["\\ud800"]}}', "Bearer right", 400, "body"),
        (b'{"session": {"audio": ' + b"[" * 900 + b"]" * 900 + b"}}", "Bearer right", 400, "body"),
    ]
    async with http_client(make_gateway(KEYS)) as http:
        for body, authorization, status, param in cases:
            headers = {"Authorization": authorization} if authorization else {}
            response = await http.post("/v1/realtime/client_secrets", content=body, headers=headers)
            assert (response.status_code, response.json()["error"]["param"]) == (status, param)
        response = await http.post("/v1/realtime/client_secrets", content=b" " * ((64 << 10) + 1), headers=headers)
        assert response.status_code == 413
        assert response.json()["error"]["message"].endswith("the request has more than 65,536 bytes")


@pytest.mark.parametrize("begin", [b"\x1aE\xdf\xa3", b"OggS", b"RIFF\xff\xff\xff\xffWAVEfmt "])
async def test_audio_of_another_form_is_an_error(gateway, begin):
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        audio = base64.b64encode(begin + bytes(20)).decode()
        await send(socket, "input_audio_buffer.append", audio=audio)
        code, events = await closed(socket)
    assert code == 1008 and events[-1]["error"]["code"] == "audio_invalid"


async def test_noise_as_of_another_encoding_is_a_remark(gateway):
    async with running(gateway) as served, websockets.connect(served.ws_url + PATH) as socket:
        audio = base64.b64encode(random.Random(0).randbytes(4 * 48_000)).decode()
        await send(socket, "input_audio_buffer.append", audio=audio)
        assert (await receive(socket, "penstock.remark"))["code"] == "misread"
