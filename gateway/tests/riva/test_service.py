"""The service on a real socket, with fake streams: 100 ms of sound is one word."""

import asyncio
import contextlib
import gc
import logging
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager

import grpc
import numpy as np
import pytest

from client.tests.helpers.event_loop import until
from client.tests.helpers.sound_files import media_file, sound_file
from gateway.tests.helpers.fake_streams import GROUP, speech
from gateway.tests.helpers.riva_client import audio, client, configuration, finals, pieces
from gateway.tests.helpers.running import running
from penstock_gateway import limits
from penstock_gateway.audio import container
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.service import PROTOCOL, SERVICE, RivaService
from penstock_gateway.rpc.api import _key, rejecting
from penstock_gateway.security.budget import Budget
from penstock_gateway.security.keys import ANONYMOUS

Code = grpc.StatusCode


@contextmanager
def freed_at_once(max_bytes: int) -> Iterator[None]:
    """The block must leave less than this; garbage, which is collected only after many requests, counts."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left < max_bytes


SILENCE = bytes(3200)


async def responses(call):
    return [response async for response in call]


@asynccontextmanager
async def rejected(gateway, code, text):
    """The block's call must fail with this status and text; the stream of the failed call is freed."""
    with pytest.raises(grpc.RpcError) as error:
        yield error
    assert error.value.code() is code, error.value
    assert text in error.value.details()
    assert all(stream.is_cancelled for stream in gateway.streams.opened)


async def test_a_stream(gateway):
    async with client(gateway) as riva_client:
        received = await riva_client.send_all([configuration(True), *pieces(speech(0.3, 1.0, 0.2))])
        unasked = await riva_client.send_all([configuration(), *pieces(speech(0.3, 1.0, 0.2))])
    results = [result for response in received for result in response.results]
    assert [result.alternatives[0].transcript for result in results] == [
        "w0", "w0 w1", "w0 w1 w2", "w0 w1 w2 ", "w3", "w3 w4", "w3 w4 ",
    ]  # fmt: skip
    assert [result.is_final for result in results] == [False] * 3 + [True] + [False] * 2 + [True]
    assert [response.results[0].alternatives[0].transcript for response in unasked] == ["w0 w1 w2 ", "w3 w4 "]
    assert [round(result.stability, 2) for result in results[:4]] == [0, 0.4, 0.62, 1]
    assert all(result.channel_tag == 1 for result in results)
    assert gateway.streams.opened[0].is_cancelled  # its slot is free


async def test_responses_repeat_the_id(gateway):
    async with client(gateway) as riva_client:
        messages = [configuration(), audio(speech(0.3), id={"value": "turn 3"})]
        (response,) = await riva_client.send_all(messages)
        assert response.id.value == "turn 3"
        assert (await riva_client.recognize(SILENCE)).id.value == "call 7"


@pytest.mark.parametrize(("rate_hz", "encoding"), [(16_000, "LINEAR_PCM"), (8000, "LINEAR_PCM"), (48_000, 0)])
async def test_raw_audio(gateway, rate_hz, encoding):
    samples = speech(0.3, 1.0, 0.2, rate_hz=rate_hz)
    async with client(gateway) as riva_client:
        config = configuration(encoding=encoding, sample_rate_hertz=rate_hz)
        found = await finals(riva_client.send_all([config, *pieces(samples, 777)]))
        force = {"runtime_config": {"force_eou": "true"}}
        await riva_client.send_all([config, *(audio(part, **force) for part in np.array_split(samples, 5))])
    assert found[0].startswith("w0 w1 w2")
    pushed, forced = (np.concatenate(stream.pushed) for stream in gateway.streams.opened)
    assert len(pushed) == len(forced) == 1.5 * 16_000
    # A forced end changes what is resampled in the last 5 ms before it.
    ends = np.arange(1, 6) * len(pushed) // 5
    is_same = (np.arange(len(pushed)) < ends[:, None] - 80).argmax(0)
    is_near = (ends[is_same] - np.arange(len(pushed))) <= 80
    assert (forced == pushed)[~is_near].all()


async def test_options_change_in_a_running_call(gateway):
    phrases = {"speech_contexts": '[{"phrases": ["four"], "boost": 50}]'}
    messages = [configuration(), audio(speech(0.2), runtime_config=phrases), audio(speech(0.2), runtime_config=phrases)]
    async with client(gateway) as riva_client:
        forced = audio(speech(0.1), runtime_config={"stop_history": "400", "force_eou": "1"})
        found = await finals(riva_client.send_all([*messages, forced]))
        async with rejected(gateway, Code.INVALID_ARGUMENT, "stop_history"):
            await riva_client.send_all([configuration(), audio(speech(0.2), runtime_config={"stop_history": "x"})])
    assert found == ["w0 w1 ", "w2 w3 w4 "]
    stream = gateway.streams.opened[0]
    assert (stream.options.phrases, stream.options.endpoint_silence_ms) == ((("four", 1.0),), 400)


@pytest.mark.parametrize(
    ("form", "subtype", "fields"),
    [
        ("WAV", "PCM_16", {}),
        ("WAV", "PCM_16", {"encoding": "LINEAR_PCM", "sample_rate_hertz": 8000}),  # the header is right
        ("FLAC", None, {"encoding": "FLAC"}),
        ("OGG", "OPUS", {"encoding": "OGGOPUS"}),
        ("RAW", "ULAW", {"encoding": "MULAW", "sample_rate_hertz": 16_000}),
        ("RAW", "ALAW", {"encoding": "ALAW", "sample_rate_hertz": 16_000}),
    ],
)
async def test_files_as_streams_and_whole(gateway, form, subtype, fields):
    data = sound_file(speech(0.3, 1.0, 0.2), 16_000, form, subtype)
    async with client(gateway) as riva_client:
        messages = [configuration(**fields), *(audio(data[i : i + 1111]) for i in range(0, len(data), 1111))]
        streamed = await finals(riva_client.send_all(messages))
        whole = await riva_client.recognize(data, **fields)
    assert [result.alternatives[0].transcript for result in whole.results] == streamed
    assert streamed[0].startswith("w0 w1 w2")
    assert len(streamed) == 2 or subtype == "OPUS"  # which leaves the level of silence above that of a word


MP3 = sound_file(speech(0.5), form="MP3")
RECORDINGS = {
    "mp3": lambda: MP3,
    "mp3 with a tag": lambda: b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + MP3,
    "webm": lambda: media_file("webm", "libopus", speech(0.5), 16_000),
    "m4a": lambda: media_file("ipod", "aac", speech(0.5), 16_000),
    "aac": lambda: media_file("adts", "aac", speech(0.5), 16_000),
}
WITHOUT_NAME = ("mp3", "aac")
"""Forms that only frames in a row show, which declared samples could have by chance."""


@pytest.mark.parametrize("form", RECORDINGS)
async def test_a_recording_that_is_declared_as_pcm_is_decoded(gateway, form):
    data = RECORDINGS[form]()
    async with client(gateway) as riva_client:
        fields = {} if form in WITHOUT_NAME else {"encoding": "LINEAR_PCM"}
        (result,) = (await riva_client.recognize(data, **fields)).results
        parts = [audio(data[start : start + 100]) for start in range(0, len(data), 100)]
        streamed = await riva_client.send_all([configuration(), *parts])
    words = result.alternatives[0].transcript.split()
    assert words  # encoders remove some of a constant level
    assert streamed[0].results[0].alternatives[0].transcript.split() == words


async def test_a_cut_recording_that_begins_late_gives_its_times_and_a_remark(gateway):
    data = media_file("matroska", "pcm_s16le", speech(0.5), 16_000, start_s=5.0)
    data = data[:-2000]
    async with client(gateway) as riva_client:
        call = riva_client.recognize(data, enable_word_time_offsets=True)
        assert (await call).results[0].alternatives[0].words[0].start_time >= 5000
        assert dict(await call.trailing_metadata())["penstock-warning"].startswith("cut; start=5.")
        assert "penstock-warning" not in dict(await riva_client.recognize(SILENCE).trailing_metadata())


async def test_noise_as_of_another_encoding_is_in_the_trailing_metadata(gateway):
    data = np.random.default_rng(0).bytes(4 * 32_000)
    async with client(gateway) as riva_client:
        call = riva_client.recognize(data, encoding="LINEAR_PCM")
        await call
        assert dict(await call.trailing_metadata())["penstock-warning"].startswith("misread; start=0.00")


async def test_the_models(gateway):
    async with client(gateway) as riva_client:
        found = (await riva_client.config()).model_config
        assert [config.parameters["type"] for config in found] == ["online", "offline"]
        assert {config.model_name for config in found} == {GROUP.name}
        assert dict(found[0].parameters) == {
            "type": "online", "language_code": "en", "sample_rate": "16000", "max_alternatives": "4",
        }  # fmt: skip
        assert len((await riva_client.config(GROUP.name)).model_config) == 2
        async with rejected(gateway, Code.NOT_FOUND, "MODEL_NOT_FOUND"):
            await riva_client.config("none")


@pytest.mark.parametrize(
    ("messages", "code", "text"),
    [
        ([], Code.INVALID_ARGUMENT, "first message has no streaming_config"),
        ([audio(speech(0.1))], Code.INVALID_ARGUMENT, "first message has no streaming_config"),
        ([b"\xff" * 40], Code.INVALID_ARGUMENT, "not a nvidia.riva.asr.StreamingRecognizeRequest"),
        ([configuration(), configuration()], Code.INVALID_ARGUMENT, "streaming_config"),
        ([configuration(), audio(b"RIFF" + b"x" * 40)], Code.INVALID_ARGUMENT, "AUDIO_INVALID"),
        ([configuration(encoding="FLAC"), audio(speech(0.1))], Code.INVALID_ARGUMENT, "accepted: WAV, MP3"),
        ([configuration(), audio(b"", runtime_config={"x": "y"})], Code.INVALID_ARGUMENT, "runtime_config"),
        (
            [configuration(), audio(b"fLaC", runtime_config={"force_eou": "1"})],
            Code.INVALID_ARGUMENT,
            "force_eou needs LINEAR_PCM",
        ),
    ],
)
async def test_a_wrong_message_ends_its_stream(gateway, messages, code, text, caplog):
    async with client(gateway) as riva_client:
        async with rejected(gateway, code, text):
            await riva_client.send_all(messages)
        assert await finals(riva_client.send_all([configuration(), audio(speech(0.1))])) == ["w0 "]
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


@pytest.mark.parametrize("form", ["RAW", "WAV"])
async def test_a_recording_is_not_longer_than_the_limit_and_a_live_stream_is(make_gateway, form):
    gateway = make_gateway(max_file_minutes=1)
    minute = speech(0.1, 59.9)
    long = np.concatenate([minute, speech(0, 0.1)])
    async with client(gateway) as riva_client:
        assert (await riva_client.recognize(sound_file(minute, form=form, subtype="PCM_16"))).results
        async with rejected(gateway, Code.RESOURCE_EXHAUSTED, "TOO_LARGE: the audio is longer than 60 s"):
            await riva_client.recognize(sound_file(long, form=form, subtype="PCM_16"))
        assert await finals(riva_client.send_all([configuration(), *pieces(long, 16_000)]))


async def test_a_fault_is_counted_and_logged_and_not_shown(gateway, caplog):
    gateway.streams.open_error = ValueError("a secret")
    async with client(gateway) as riva_client:
        for call in (riva_client.recognize(SILENCE), riva_client.send_all([configuration()])):
            with pytest.raises(grpc.RpcError) as error:
                await call
            assert (error.value.code(), error.value.details()) == (Code.INTERNAL, "INTERNAL: the gateway failed")
    labels = {"protocol": "riva", "reason": "INTERNAL"}
    assert gateway.metrics.registry.get_sample_value("penstock_gateway_rejected_total", labels) == 2
    faults = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.name for record in faults] == ["penstock_gateway.grpc"] * 2
    assert all(isinstance(record.exc_info[1], ValueError) for record in faults)


@pytest.fixture
async def decoder_place(monkeypatch):
    """The only place of the decoder, which is taken."""
    budget = Budget("decoder", 1, 60.0)
    monkeypatch.setitem(container._processes, asyncio.get_running_loop(), budget)
    async with contextlib.AsyncExitStack() as place:
        await place.enter_async_context(budget.taken(ANONYMOUS.name, 1))
        yield place


async def test_compressed_audio_is_no_silence(gateway, decoder_place):
    """Nor is the time in which it waits for the decoder."""
    data = sound_file(speech(0.3), 16_000, "FLAC")
    async with client(gateway) as riva_client:
        call = riva_client.stream()
        await call.write(configuration())
        for count, part in enumerate((data[:100], data[100:]), start=1):
            await call.write(audio(part))
            while not gateway.streams.opened or len(gateway.streams.opened[0].pushed) < count:
                await asyncio.sleep(0.005)
        await call.done_writing()
        await until(lambda: not gateway.streams.opened[0].activity.silent_s(time.monotonic() + 3600))
        await decoder_place.aclose()
        (response,) = await responses(call)
    assert response.results[0].alternatives[0].transcript == "w0 w1 w2 "


async def test_a_client_that_sends_nothing_is_closed(gateway, monkeypatch):
    monkeypatch.setattr(limits, "MAX_SILENT_S", 0.05)
    async with client(gateway) as riva_client, rejected(gateway, Code.DEADLINE_EXCEEDED, "STREAM_IDLE"):
        await responses(riva_client.stream())


async def test_a_stream_with_backpressure_is_not_read_ahead(gateway):
    async with client(gateway) as riva_client:
        call = riva_client.stream()
        await call.write(configuration())
        await until(lambda: gateway.streams.opened)
        stream = gateway.streams.opened[0]
        stream.room.clear()
        piece = audio(np.zeros(100_000, np.float32))
        sent = 0

        async def send():
            nonlocal sent
            while True:
                await call.write(piece)
                sent += 1

        sender = asyncio.ensure_future(send())
        before = -1
        while before != sent or not sent:
            before = sent
            await asyncio.sleep(0.3)
        assert not stream.pushed and sent < 100  # gRPC's own buffers are full
        sender.cancel()
        call.cancel()


class Cancelled:
    """The context of a call that its client has cancelled after the first message."""

    def invocation_metadata(self):
        return ()

    async def read(self):
        return configuration()

    async def send_initial_metadata(self, _):
        raise grpc.aio.InternalError

    async def abort(self, *_):
        raise grpc.aio.InternalError


async def test_a_rejection_of_a_cancelled_call_is_quiet(gateway):
    with pytest.raises(asyncio.CancelledError):
        async with rejecting(Cancelled(), gateway, PROTOCOL):
            raise GatewayError(GatewayCode.FIELD_INVALID, "no", "field")


async def test_a_stream_that_is_cancelled_before_its_metadata_is_quiet(gateway):
    _key.set(ANONYMOUS)
    with pytest.raises(asyncio.CancelledError):
        await RivaService(gateway).streaming_recognize(None, Cancelled())
    assert [stream.is_cancelled for stream in gateway.streams.opened] == [True]


LARGE = 2 << 20


@pytest.mark.parametrize(
    ("case", "config", "audio_of"),
    [
        ("no message", {}, None),
        ("no audio", {}, b"fLaC" + bytes(LARGE)),
        ("wrong field", {"sample_rate_hertz": -5, "encoding": 1}, bytes(LARGE)),
        ("wrong model", {"model": "other"}, bytes(LARGE)),
        ("lost stream", {"encoding": 1, "sample_rate_hertz": 16_000}, bytes(LARGE)),
    ],
)
async def test_a_rejected_recording_is_freed_at_once(gateway, streams, case, config, audio_of):
    request = riva.RecognizeRequest(config={"verbatim_transcripts": True} | config, audio=audio_of or b"")
    message = b"\xff" * LARGE if audio_of is None else request.SerializeToString()
    if case == "lost stream":
        streams.open_error = GatewayError(GatewayCode.NO_REPLICA, "not now")
    async with running(gateway) as served, grpc.aio.insecure_channel(served.grpc_address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Recognize")
        with pytest.raises(grpc.RpcError):
            await call(b"")
        with freed_at_once(LARGE):
            for _ in range(5):
                with pytest.raises(grpc.RpcError):
                    await call(message)


async def test_fields_beside_the_audio_have_a_limit(gateway):
    """A character of a phrase may take four times its byte."""
    text = "x" * limits.MAX_FIELDS_BYTES + "\U0001f600"
    fields = {"speech_contexts": [{"phrases": [text]}]}
    async with client(gateway) as riva_client:
        for call in (
            riva_client.recognize(b"", **fields),
            riva_client.send_all([configuration(**fields)]),
            riva_client.config(text),
        ):
            async with rejected(gateway, Code.RESOURCE_EXHAUSTED, "TOO_LARGE: the fields of the message have 1,0"):
                await call
