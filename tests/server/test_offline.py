"""Files through clients and a gateway, before a real server of a tiny offline model: the tokens of the process."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from gateway.tests.contract.call import END_SEGMENT
from gateway.tests.contract.drivers import OpenAIFile, Realtime, RivaFile, RivaStream
from penstock import OfflineRecognizer, StreamingRecognizer
from penstock.model.bundle import Checkpoint
from penstock.serving.health import probe
from penstock.serving.model_repository import SPEAKER_ENSEMBLE
from penstock_client import AsyncClient, Client, ClientError, ConnectionOptions, StreamOptions, Transcript
from penstock_client.batched.client import BatchedClient
from penstock_client.batched.rows import END, START, Row
from penstock_gateway.errors import GatewayCode
from tests.helpers.golden import golden_samples
from tests.helpers.offline_models import offline_bundle
from trials.server.gateway import RunningGateway
from trials.server.raw_stream import BatchedConnection, RawStream, errors_of
from trials.server.running import RunningServer, running_gateway, running_server

pytestmark = pytest.mark.server
RATE_HZ, SLOTS = 16_000, 8
NO_SAMPLES = np.zeros(0, np.float32)
LENGTHS_S = (65.0, 29.0, 5.0, 31.25, 0.5)
SEGMENTS = StreamOptions(endpoint_longest_s=5)
RETRY = ConnectionOptions(wait_for_slot_s=45.0)
"""Less than the idle timeout: so slots that are not freed are noticed."""
Tokens = tuple[str, list[int]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return offline_bundle(tmp_path_factory.mktemp("offline"), "tdt_hybrid")


@pytest.fixture(scope="module")
def files() -> list[np.ndarray]:
    """Samples as 16-bit audio has them."""
    speech = np.concatenate([golden_samples(name).numpy() for name in ("medium", "short", "long")] * 20)
    speech = (np.clip(speech, -1, 1) * 32767).astype("<i2").astype(np.float32) / 32768
    return [speech[: round(seconds * RATE_HZ)] for seconds in LENGTHS_S]


@pytest.fixture(scope="module")
def recognizer(checkpoint) -> OfflineRecognizer:
    return OfflineRecognizer(checkpoint.directory)


@pytest.fixture(scope="module")
def expected(recognizer, files) -> list[Tokens]:
    """The text and tokens of each file in this process."""
    return [(one.text, [token.id for token in one.tokens]) for one in recognizer.transcribe(files)]


@pytest.fixture(scope="module")
def served(checkpoint, speaker_bundle) -> Iterator[RunningServer]:
    limits = {"PENSTOCK_MAX_FILE_MINUTES": "2", "PENSTOCK_MAX_AUDIO_S": "800"}
    more = {"PENSTOCK_CONTEXT": "", "PENSTOCK_SPEAKERS": str(speaker_bundle.directory)}
    yield from running_server(checkpoint.directory, SLOTS, 60.0, more | limits)


@pytest.fixture(scope="module")
def gateway(served) -> Iterator[RunningGateway]:
    with running_gateway(served) as addresses:
        yield addresses


def test_the_server_says_that_it_takes_files(served):
    with Client(served.url("grpc")) as client:
        info = client.server_info()
    assert (info.windows, info.context, info.chunk_ms) == (("file", "long", "live"), None, 0.0)
    assert len(info.fingerprint) == 64 and "chunk_samples" not in info.parameters


def test_a_cancelled_file_is_gone_and_the_probe_goes_on(served, files):
    parts, http = np.split(files[0], [30 * RATE_HZ, 60 * RATE_HZ]), served.url("http")
    with RawStream(served.url("grpc"), "cancelled") as stream:
        for number, part in enumerate(parts):
            reply = stream.send(part, number == 0, part is parts[-1])
            assert part is parts[-1] or (reply.text, reply.is_final, reply.processed_s) == ("", False, 0.0)
        assert probe(http, 60.0).is_healthy
        reply = stream.send(NO_SAMPLES, end=True)
        assert (reply.is_final, reply.processed_s) == (True, np.float32(len(files[0]) / RATE_HZ))
        with pytest.raises(InferenceServerException, match=r"STREAM_NOT_OPEN: .*was cancelled"):
            stream.send(NO_SAMPLES)
    assert probe(http, 60.0, needs_room=True).is_healthy


def found(transcript: Transcript) -> Tokens:
    return transcript.text, transcript.tokens


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_live_windows_beside_files(served, checkpoint, files, expected, protocol):
    """Sent faster than speech: the server keeps what the encoder has not taken. Then one that its client leaves."""
    options = StreamOptions(window="2.4,0.8,0.4", endpoint_silence_ms=800)
    samples = files[2]
    one = StreamingRecognizer(checkpoint.directory).open_stream(options=options.parameters())
    last = one.finish(samples)
    text = " ".join(entry.text for entry in last.entries if entry.text)
    with Client(served.url(protocol), protocol, timeout_s=60, connection_options=RETRY) as client:
        with client.open_stream(options=options) as live, client.open_stream() as file:
            processed = []
            for begin in range(0, len(samples), 8000):
                live.send(samples[begin : begin + 8000])
                file.send(samples[begin : begin + 8000])
            live.finish()
            file.finish()
            for _ in live:
                processed.append(live.transcript.audio_processed_s)
            assert list(file) and found(file.transcript) == expected[2]
        assert found(live.transcript) == (text, [token.id for token in one.tokens])
        assert processed == sorted(processed) and processed[-1] == len(samples) / RATE_HZ
        with client.open_stream(options=options) as one_by_one:  # else requests may share a batch
            processed = []
            for begin in range(0, len(samples), 8000):
                one_by_one.send(samples[begin : begin + 8000])
                processed += [result.audio_processed_s for result in one_by_one.poll(60)]
        assert processed == sorted(processed) and len(set(processed)) > 3
        client.check_live(options)
        for _ in range(SLOTS + 1):  # each frees its slot
            with client.open_stream(options=options) as stream:
                stream.send(samples)
        assert client.transcribe(files[4], options=StreamOptions(window="live")).is_complete


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_threads(served, files, recognizer, expected, protocol):
    with Client(served.url(protocol), protocol, timeout_s=60) as client:
        for samples, tokens in zip(files, expected, strict=True):
            progress_s = []
            note = lambda transcript, seen=progress_s: seen.append(transcript.audio_processed_s)  # noqa: E731
            transcript = client.transcribe(samples, on_progress=note)
            assert found(transcript) == tokens and transcript.is_complete
            assert transcript.audio_processed_s == np.float32(len(samples) / RATE_HZ)
            assert progress_s == sorted(progress_s)
        for samples, options in ((files[0], {"window": "long"}), (files[2][:160], {"decoder": "ctc"})):
            (one,) = recognizer.transcribe([samples], options)
            transcript = client.transcribe(samples, options=StreamOptions(**options))
            assert found(transcript) == (one.text, [token.id for token in one.tokens])


async def batched_tokens(client: BatchedClient, samples: np.ndarray, options: StreamOptions | None = None):
    stream, transcript = await client.open_stream(options), Transcript()

    async def read():
        async for result in stream:
            transcript.add(result)

    reading = asyncio.create_task(read())
    for start in range(0, len(samples), RATE_HZ):
        await stream.push(samples[start : start + RATE_HZ])
    await stream.finish()
    await reading
    return transcript


async def test_segments_are_those_of_the_process(served, files, recognizer):
    (whole,) = recognizer.transcribe([files[0]], SEGMENTS.parameters())
    assert len(whole.entries) > 2
    with Client(served.url("grpc"), timeout_s=60) as client:
        one = await asyncio.to_thread(client.transcribe, files[0], options=SEGMENTS)
    async with BatchedClient(served.url("grpc"), timeout_s=60) as client:
        other = await batched_tokens(client, files[0], SEGMENTS)
    for transcript in (one, other):
        segments = [(each.text, each.tokens) for each in transcript.segments]
        assert segments == [(entry.text, len(entry.tokens)) for entry in whole.entries]
        assert [(word.text, word.start_ms) for word in transcript.words] == [
            (word.text, round(word.start_ms)) for entry in whole.entries for word in entry.words
        ]


async def test_live_streams_through_a_gateway(served, checkpoint, files):
    """Beside a file; segments that the client ends are streams of their own."""
    recognizer, options = StreamingRecognizer(checkpoint.directory), {"window": "2.4,0.8,0.4"}
    parts = [files[2][: 2 * RATE_HZ], files[2][2 * RATE_HZ :]]
    with running_gateway(served, "--live-window", options["window"]) as gateway:
        found = await asyncio.gather(
            RivaStream.of(gateway, *np.split(files[2], range(1600, len(files[2]), 1600)), key=None),
            Realtime.of(gateway, parts[0], END_SEGMENT, parts[1], key=None),
            OpenAIFile.of(gateway, files[2], key=None),
        )
    texts = [recognizer.open_stream(options=options).finish(samples).text for samples in (files[2], *parts)]
    assert [found[0].text, found[1].texts] == [texts[0], texts[1:]] and found[2].text


async def check_gateway(gateway: RunningGateway, samples: np.ndarray, tokens: Tokens) -> None:
    for driver in (OpenAIFile, RivaFile):
        assert (await driver.of(gateway, samples, key=None)).text == tokens[0]


async def test_gateway_alone(gateway, files, expected):
    for samples, tokens in zip(files, expected, strict=True):
        await check_gateway(gateway, samples, tokens)


async def test_limits_of_audio_have_codes_everywhere(served, gateway, files, expected):
    """Files that do not fit are rejected; the files that hold the memory have their words."""
    async with AsyncClient(served.url("grpc"), timeout_s=60) as client, BatchedClient(served.url("grpc")) as batched:
        http = AsyncClient(served.url("http"), "http", timeout_s=60)

        async def codes(samples: np.ndarray) -> list[str]:
            found = []
            for call in (client.transcribe, http.transcribe, partial(batched_tokens, batched)):
                with pytest.raises(ClientError) as caught:
                    await call(samples)
                found.append(caught.value.code)
            return found

        async with http:
            too_long = np.tile(files[0], 2)[: 121 * RATE_HZ]
            assert await codes(too_long) == ["AUDIO_TOO_LONG"] * 3
            for driver in (OpenAIFile, RivaFile):
                outcome = await driver.of(gateway, too_long, key=None)
                assert (outcome.code, outcome.status) in driver.errors(GatewayCode.TOO_LARGE)
            holding = [client.open_stream() for _ in range(SLOTS - 1)]
            for stream, size in zip(holding, [65, *[119] * 6], strict=True):
                await stream.send(too_long[: size * RATE_HZ])  # 779 s
                assert await stream.poll(60)
            assert await codes(files[1]) == ["AUDIO_MEMORY_FULL"] * 3
            outcome = await OpenAIFile.of(gateway, files[1], key=None)
            assert (outcome.code, outcome.status) in OpenAIFile.errors(GatewayCode.STREAMS_EXHAUSTED)
            async with AsyncClient(served.url("grpc"), timeout_s=60, connection_options=RETRY) as patient:
                assert found(await patient.transcribe(files[2])) == expected[2]
            await holding[0].finish()
            assert [result async for result in holding[0]] and found(holding[0].transcript) == expected[0]
            for stream in holding:
                await stream.close()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_cancelled_files_free_their_slots(served, files, expected, protocol):
    url = served.url(protocol)
    async with AsyncClient(url, protocol, timeout_s=60, connection_options=RETRY) as client:
        for number, stream in enumerate([client.open_stream() for _ in range(SLOTS)]):
            await stream.send(files[0])
            if number % 2:
                await stream.finish()
            assert await stream.poll(60)
            await stream.close()
        transcripts = await asyncio.gather(*(client.transcribe(files[1]) for _ in range(SLOTS)))
    assert list(map(found, transcripts)) == [expected[1]] * SLOTS


def test_a_file_has_the_speaker_of_each_word(served, files, expected):
    """Frames of the speaker model come with the audio, words with later polls."""
    options, samples = json.dumps({"speakers": "on", "speaker_mode": "file"}), files[1]
    parts = np.split(samples, range(RATE_HZ, len(samples), RATE_HZ))
    with BatchedConnection(served.url("grpc"), "speakers", SPEAKER_ENSEMBLE) as connection:
        for number, part in enumerate(parts):
            flags = START * (number == 0) | END * (number == len(parts) - 1)
            reply = connection.ask([Row(1, part, flags, None if number else options)])
        while not (errors := errors_of(reply)) and not reply.as_numpy("IS_FINAL").any():
            reply = connection.ask([Row(1, NO_SAMPLES)])
        assert not errors
    (text,), (words,) = reply.as_numpy("TEXT")[0], reply.as_numpy("LIST_COUNTS")[:, :1].tolist()
    speakers = reply.as_numpy("WORD_SPEAKERS")[0].tolist()
    assert text.decode() == expected[1][0] and len(speakers) >= words[0]
    assert speakers and all(speakers)
