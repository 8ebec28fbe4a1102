"""The ensemble `asr_batch_speakers` of a real server, beside the others."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from penstock.frontend.audio_file import read_audio
from penstock.serving.model_repository import SPEAKER_ENSEMBLE
from penstock.speakers.bundle import SpeakerCheckpoint
from penstock_client import Client, StreamOptions
from penstock_client.batched.rows import END, FINALIZE, START, Row
from tests.helpers.golden import golden_utterances
from tests.server.conftest import SPEAKER_STREAMS
from trials.server.raw_stream import BatchedConnection, errors_of, replies_of
from trials.server.resources import read_metrics
from trials.server.running import RunningServer

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    return np.concatenate([read_audio(one.path, 16000) for one in golden_utterances()[:3]])


def speakers_of(result: triton_grpc.InferResult) -> list[tuple[int, ...]]:
    """Speakers in each result of a reply."""
    counts, speakers = (result.as_numpy(name)[0].tolist() for name in ("SPEAKER_COUNTS", "WORD_SPEAKERS"))
    ends = list(itertools.accumulate(counts))
    assert (ends[-1] if ends else 0) == len(speakers)
    return [tuple(speakers[end - count : end]) for count, end in zip(counts, ends, strict=True)]


class Finals:
    """The final results of one stream that is alone in its connection."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.words: list[tuple[tuple[str, int, int], ...]] = []
        self.speakers: list[tuple[int, ...]] = []
        self._open: tuple = ()

    def add(self, result: triton_grpc.InferResult) -> None:
        assert not errors_of(result), errors_of(result)
        found = zip(replies_of(result).values(), speakers_of(result), strict=True)
        for reply, speakers in found:
            self._open += reply.words
            if not reply.is_final:
                assert speakers == ()
                continue
            self.texts.append(reply.text)
            self.words.append(self._open)
            self.speakers.append(speakers)
            self._open = ()


def cut(samples: np.ndarray, size: int, number: int = 1, **options: Any) -> list[Row]:
    """The rows of a stream that a segment's end halves."""
    half, rows = len(samples) // 2 // 160 * 160, []
    for begin, end, last in ((0, half, FINALIZE), (half, len(samples), END)):
        parts = np.split(samples[begin:end], range(size, end - begin, size))
        rows += [Row(number, part) for part in parts[:-1]] + [Row(number, parts[-1], last)]
    first = rows[0]
    rows[0] = Row(number, first.samples, first.flags | START, json.dumps(options) if options else None)
    return rows


def recognize(server: RunningServer, model: str, rows: list[Row]) -> Finals:
    """One stream; all rows are on their way at once."""
    finals = Finals()
    with BatchedConnection(server.url("grpc"), f"{model} {id(rows)}", model) as connection:
        for row in rows:
            connection.send([row])
        for _ in rows:
            reply = connection.receive()
            assert isinstance(reply, triton_grpc.InferResult), reply
            finals.add(reply)
    return finals


def test_finals_have_the_speaker_of_each_word(server: RunningServer, samples: np.ndarray):
    """Whatever the requests' sizes, for every mode, with alternatives, and without a change to a word."""
    before = read_metrics(server)
    options = {"decoder": "alsd", "n_best": 2}
    found = {size: recognize(server, SPEAKER_ENSEMBLE, cut(samples, size, speakers="on")) for size in (1600, 50_000)}
    for mode in ("ultra_low_latency", "file"):
        found[mode] = recognize(server, SPEAKER_ENSEMBLE, cut(samples, 8000, speakers=2, speaker_mode=mode))
    plain = recognize(server, SPEAKER_ENSEMBLE, cut(samples, 8000))
    for one in (*found.values(), plain):
        assert (one.texts, one.words) == (plain.texts, plain.words)
    assert len(plain.texts) == 2 and all(plain.texts) and plain.speakers == [(), ()]
    assert found[1600].speakers == found[50_000].speakers
    for one in found.values():
        assert [len(each) for each in one.speakers] == [len(each) for each in plain.words]
        assert all(speaker > 0 for each in one.speakers for speaker in each)
    row = Row(1, samples[:16_000], START | END, json.dumps(options | {"speakers": "on"}))
    with BatchedConnection(server.url("grpc"), "alternatives", SPEAKER_ENSEMBLE) as connection:
        (alternatives, *_) = connection.ask([row]).as_numpy("ALTERNATIVE_WORDS")[0]
    assert {len(word) for word in json.loads(alternatives)} == {5}
    after = read_metrics(server)
    assert after["speaker_chunks_total"] >= after["speaker_steps_total"] > before["speaker_steps_total"]
    assert after["speaker_busy_seconds_total"] > 0 and after["speaker_streams_lost_total"] == 0


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_clients_have_the_words_of_streams_without_speakers_and_a_speaker_for_each(
    server: RunningServer, samples: np.ndarray, protocol: str
):
    """A file in steps of its mode and in those of live streams; live audio, likewise, in parts."""
    live = StreamOptions(speakers="on", speaker_mode="low_latency")
    with Client(server.url(protocol), protocol, timeout_s=60) as client:
        expected = [word.text for word in client.transcribe(samples).words]
        for options in (StreamOptions(speakers="on"), live):
            found = client.transcribe(samples, options=options).words
            assert [word.text for word in found] == expected and all(word.speaker for word in found)
        with client.open_stream(live) as stream:
            for part in np.split(samples, range(4321, len(samples), 4321)):
                stream.send(part)
            stream.finish()
            list(stream)
        assert stream.transcript.words == found


def test_both_ensembles_say_what_is_served(server: RunningServer, speaker_bundle: SpeakerCheckpoint):
    with triton_grpc.InferenceServerClient(server.url("grpc")) as client:
        for model in ("asr", "asr_batch", SPEAKER_ENSEMBLE):
            found = client.get_model_config(model, as_json=True)["config"]["parameters"]
            values = {name: one.get("string_value", "") for name, one in found.items()}
            assert (values["speakers"], values["speaker_streams"]) == ("8", str(SPEAKER_STREAMS))
            assert values["speaker_modes"].split(",") == list(speaker_bundle.config.steps)
            assert values["speaker_delay_ms"].split(",")[0] == "1040"
