"""Both ports with TLS: https, wss and gRPC with a certificate that clients trust, and nothing without."""

import asyncio
import base64
import json
import os
import ssl
import threading
from pathlib import Path
from types import SimpleNamespace

import grpc
import httpx2
import pytest
import websockets

from client.tests.helpers.sound_files import sound_file
from gateway.tests.helpers.fake_streams import speech
from gateway.tests.helpers.running import running
from penstock_gateway import limits
from penstock_gateway.process import serving
from penstock_gateway.process.startup import Certificate
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.service import SERVICE
from penstock_gateway.stream.metrics import Metrics

FOLDER = Path(__file__).parents[1] / "helpers" / "tls"
CERTIFICATE = FOLDER / "cert.pem"
"""Self-signed, for localhost and 127.0.0.1, valid from 2020 to 2120."""


@pytest.fixture
async def served(make_gateway):
    gateway = make_gateway(tls_cert=str(CERTIFICATE), tls_key=str(FOLDER / "key.pem"))
    async with running(gateway) as served:
        yield served


@pytest.fixture
def trust():
    return ssl.create_default_context(cafile=str(CERTIFICATE))


def recording():
    return sound_file(speech(0.3), subtype="PCM_16")


async def transcribe(url, verify=True):
    async with httpx2.AsyncClient(base_url=url, verify=verify, timeout=60) as client:
        response = await client.post("/v1/audio/transcriptions", files={"file": recording()}, data={"model": ""})
        return response.json()["text"]


async def recognize(channel):
    call = channel.unary_unary(f"/{SERVICE}/Recognize", response_deserializer=riva.RecognizeResponse.FromString)
    request = riva.RecognizeRequest(config={"verbatim_transcripts": True}, audio=recording())
    (result,) = (await call(request.SerializeToString(), timeout=60)).results
    return result.alternatives[0].transcript


async def test_wss(served, trust):
    async with websockets.connect(f"wss://127.0.0.1:{served.http_port}/v1/realtime", ssl=trust) as socket:
        audio = base64.b64encode((speech(0.3) * 32767).astype("<i2").tobytes()).decode()
        settings = {"format": {"type": "audio/pcm", "rate": 16_000}, "turn_detection": None}
        session = {"type": "transcription", "audio": {"input": settings}}
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
        while not (event := json.loads(await socket.recv()))["type"].endswith("transcription.completed"):
            assert event["type"] != "error"
    assert event["transcript"] == "w0 w1 w2"


async def test_plain_connections_are_rejected(served, streams, caplog):
    caplog.set_level("INFO")
    with pytest.raises(httpx2.TransportError):
        await transcribe(served.url)
    reasons = [record.fields["reason"] for record in caplog.records if record.message == "rejected"]
    assert reasons == ["127.0.0.1 uses no TLS on a port with TLS; accepted: https:// and wss://"]
    with pytest.raises((OSError, EOFError, websockets.WebSocketException)):
        await websockets.connect(f"{served.ws_url}/v1/realtime")
    async with grpc.aio.insecure_channel(served.grpc_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await recognize(channel)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not streams.opened


async def test_clients_that_do_not_trust_the_certificate_are_not_served(served, streams):
    with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        await transcribe(f"https://127.0.0.1:{served.http_port}")
    async with grpc.aio.secure_channel(served.grpc_address, grpc.ssl_channel_credentials()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await recognize(channel)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not streams.opened


async def test_connections_without_a_handshake_are_counted_and_closed(make_gateway, trust, monkeypatch):
    monkeypatch.setattr(limits, "MAX_UNKNOWN_CONNECTIONS", 2)
    monkeypatch.setattr(limits, "UNRESPONSIVE_S", 0.5)
    gateway = make_gateway(tls_cert=str(CERTIFICATE), tls_key=str(FOLDER / "key.pem"))
    async with running(gateway) as served:
        silent = [await asyncio.open_connection("127.0.0.1", served.http_port) for _ in range(2)]
        with pytest.raises(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", served.http_port)
            await writer.start_tls(trust, server_hostname="localhost")
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
        monkeypatch.undo()
        assert await transcribe(f"https://127.0.0.1:{served.http_port}", trust) == "w0 w1 w2"


async def test_a_renewed_certificate_is_served_without_a_restart(make_gateway, tmp_path, trust):
    """The first one is of another name, which the client rejects."""
    paths = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    for path, old in zip(paths.values(), ("other_cert.pem", "other_key.pem"), strict=True):
        path.write_bytes((FOLDER / old).read_bytes())
    gateway = make_gateway(**{name: str(path) for name, path in paths.items()})
    async with running(gateway) as served:
        certificate = served.certificate
        for path, new in zip(paths.values(), ("cert.pem", "key.pem"), strict=True):
            with pytest.raises(httpx2.ConnectError):
                await transcribe(f"https://127.0.0.1:{served.http_port}", trust)
            path.write_bytes((FOLDER / new).read_bytes())
            renewed = [certificate.refresh() for _ in range(3)]
            assert any(renewed) == (new == "key.pem"), "of the first file alone it keeps the old pair"
        certificate.load_into(served.http.tls)
        paths["tls_key"].unlink()
        os.mkfifo(paths["tls_key"])
        assert not certificate.refresh()
        assert await transcribe(f"https://127.0.0.1:{served.http_port}", trust) == "w0 w1 w2"
        credentials = grpc.ssl_channel_credentials(CERTIFICATE.read_bytes())
        async with grpc.aio.secure_channel(served.grpc_address, credentials) as channel:
            assert await recognize(channel) == "w0 w1 w2 "


async def test_files_are_read_in_a_thread_and_a_certificate_is_given_to_the_port_by_the_loop(monkeypatch):
    context, loaded, readers = ssl.create_default_context(), asyncio.Event(), []

    class Stub(Certificate):
        def refresh(self):
            readers.append(threading.current_thread())
            return True

        def load_into(self, given):
            assert given is context and threading.current_thread() is threading.main_thread()
            loaded.set()

    monkeypatch.setattr(limits, "TICK_S", 0.0)
    http = SimpleNamespace(started=True, tls=context)
    stub = Stub(str(CERTIFICATE), str(FOLDER / "key.pem"))
    following = asyncio.create_task(serving._follow_files([stub], http))
    await asyncio.wait_for(loaded.wait(), 60)
    following.cancel()
    assert readers and threading.main_thread() not in readers


def test_a_certificate_that_cannot_be_served_is_named_and_changes_nothing(tmp_path, caplog):
    """The one that is served ends in 2120, the other one begins in 2026 and ends in 2126."""
    paths, now_s, metrics = [tmp_path / "cert.pem", tmp_path / "key.pem"], [1.9e9], Metrics()

    def write(*names):
        for path, name in zip(paths, names, strict=True):
            path.write_bytes((FOLDER / name).read_bytes())

    def shown(name):
        return metrics.registry.get_sample_value(f"penstock_gateway_file_{name}", {"file": "certificate"})

    write("cert.pem", "key.pem")
    followed = Certificate(*map(str, paths), lambda: now_s[0])
    metrics.follow(followed)
    served, others = followed.value, ("other_cert.pem", "other_key.pem")
    for count, (now, files, problem) in enumerate((
        (1.9e9, ("cert.pem", "other_key.pem"), "the private key is not that of the certificate"),
        (5e9, others, "the certificate expired on"),
        (0.0, others, "the certificate is not valid before"),
    ), 1):  # fmt: skip
        now_s[0] = now
        write(*files)
        assert not any([followed.refresh() for _ in range(3)]) and followed.value is served
        assert (shown("reload_successful"), shown("rejections_total"), len(caplog.messages)) == (0, count, count)
        with pytest.raises(ValueError, match=problem):
            Certificate(*map(str, paths), lambda: now_s[0])
    now_s[0] = 1.9e9
    assert followed.refresh() and shown("reload_successful") == 1, "its time has come"
