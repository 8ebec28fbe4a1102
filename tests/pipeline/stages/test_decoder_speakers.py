"""Words and speakers through all stages of `asr_batch_speakers`: labels depend on the audio alone."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch

from penstock.errors import StreamError
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle import Checkpoint
from penstock.pipeline.results.words import Word
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.speakers.bundle import SpeakerCheckpoint, write_speaker_checkpoint
from penstock.speakers.diarizer import Diarizer
from penstock.speakers.turns import speakers_of
from tests.helpers.golden import golden_utterances
from tests.helpers.offline_models import BUNDLED as OFFLINE
from tests.helpers.speaker_server import NO_SAMPLES, Answer, Limits, SpeakerServer

pytestmark = pytest.mark.usefixtures("uncompiled")
SPEAKERS = {"speakers": "on"}
ENDPOINTS = {"endpoint_silence_ms": 240}


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    """12 s of speech."""
    return np.concatenate([read_audio(one.path, 16_000) for one in golden_utterances()[:4]])


@pytest.fixture(scope="module")
def bundle(speaker_bundle, samples, tmp_path_factory) -> SpeakerCheckpoint:
    """The tiny speaker model, with biases by which all of its speakers speak at some time."""
    tensors = speaker_bundle.tensors()
    means = Diarizer(speaker_bundle).probabilities(torch.from_numpy(samples)).logit().mean(dim=0)
    tensors["head.out.bias"] = tensors["head.out.bias"] - means
    return write_speaker_checkpoint(tmp_path_factory.mktemp("speakers"), speaker_bundle.config, tensors, {})


class Final(NamedTuple):
    text: str
    words: tuple[Word, ...]
    speakers: tuple[int, ...]
    segment: int


class Results:
    """The results of one stream, which come in order."""

    def __init__(self) -> None:
        self.finals: list[Final] = []
        self._words: tuple[Word, ...] = ()

    def add(self, answer: Answer) -> None:
        assert not isinstance(answer, StreamError), answer
        for entry in answer.entries if answer is not None else ():
            assert entry.segment == len(self.finals)
            self._words += entry.words
            if entry.is_final:
                self.finals.append(Final(entry.text, self._words, entry.word_speakers, entry.segment))
                self._words = ()
            else:
                assert not entry.word_speakers

    @property
    def texts(self) -> list[tuple]:
        return [(final.text, final.words) for final in self.finals]

    @property
    def speakers(self) -> list[tuple[int, ...]]:
        return [final.speakers for final in self.finals]


def cut(samples: np.ndarray, size: int, ends: Sequence[int] = ()) -> list[tuple[np.ndarray, bool]]:
    """Parts of at most `size`, and whether a segment ends with each."""
    places = sorted({0, *range(0, len(samples), size), *ends, len(samples)})
    return [(samples[a:b], b in ends) for a, b in itertools.pairwise(places)]


def run(server: SpeakerServer, name: str, parts, options: dict, polls: int = 0, **more) -> Results:
    """Sends a stream's parts; polls: requests after the end, of an offline model."""
    results = Results()
    for number, (part, ends) in enumerate(parts):
        is_end = number == len(parts) - 1
        started = options if number == 0 else None
        results.add(server.send(name, part, number == 0, is_end, started, ends and not is_end, **more))
    for _ in range(polls):
        if server.table.stream_in(0) is None and not server.table.live_streams:
            break
        answer = server.send(name, **more)
        if isinstance(answer, StreamError):
            break
        results.add(answer)
    return results


def test_labels_and_words_do_not_depend_on_requests_nor_on_other_streams(bundled_model, bundle, samples):
    """From 20 ms to 30 s; segments end by endpoints, by the client before the look-ahead, twice in a row, at once."""
    server, ends = SpeakerServer(Checkpoint(bundled_model), bundle), (640, 50_000, 50_640, 52_000, 100_000)
    options, samples = {**SPEAKERS, **ENDPOINTS}, samples[:120_000]
    found = {size: run(server, f"{size}", cut(samples, size, ends), options) for size in (320, 7777, 480_000)}
    plain = run(server, "plain", cut(samples, 1600, ends), ENDPOINTS, has_speakers=False)
    silent = run(server, "silent", cut(samples, 1600, ends), ENDPOINTS)
    assert plain.texts == silent.texts and len(plain.finals) > 6
    assert not any(plain.speakers) and not any(silent.speakers)
    for one in found.values():
        assert one.texts == plain.texts
        assert one.speakers == found[320].speakers
    assert all(len(final.speakers) == len(final.words) for final in found[320].finals)
    assert len({speaker for final in found[320].finals for speaker in final.speakers}) > 2
    assert not server.speakers.lost_streams
    # Among others, all of different ages and modes
    kinds = [options, {**SPEAKERS, "speaker_mode": "file"}, ENDPOINTS, {**options, "speakers": 2}]
    names, results = [f"many {number}" for number in range(4)], [Results() for _ in range(4)]
    parts = [cut(samples, size, ends) for size in (1600, 3200, 5000, 10_000)]
    for step in range(max(map(len, parts))):
        live = [number for number in range(4) if step < len(parts[number])]
        requests = [
            AudioRequest(
                names[number], parts[number][step][0], step == 0, step == len(parts[number]) - 1,
                kinds[number] if step == 0 else {}, parts[number][step][1],
            )
            for number in live
        ]  # fmt: skip
        for number, answer in zip(live, server.call(*requests), strict=True):
            results[number].add(answer)
    assert results[0].speakers == found[320].speakers
    assert {speaker for each in results[3].speakers for speaker in each} <= {1, 2}
    assert not any(results[2].speakers)


def test_a_file_has_the_speakers_of_the_offline_diarizer(bundled_model, bundle, samples):
    server = SpeakerServer(Checkpoint(bundled_model), bundle)
    results = run(server, "a", cut(samples, 16_000), {**SPEAKERS, "speaker_mode": "file", **ENDPOINTS})
    probabilities = Diarizer(bundle).probabilities(torch.from_numpy(samples)).numpy()
    assert len(results.finals) > 3
    for final in results.finals:
        times = [(word.start_ms, word.end_ms) for word in final.words]
        assert list(final.speakers) == speakers_of(times, probabilities, 10)


def test_without_the_speaker_model_words_go_on(bundled_model, bundle, samples, monkeypatch):
    """A new process has no states; NaN; rows that come by another ensemble."""
    server, parts = SpeakerServer(Checkpoint(bundled_model), bundle), cut(samples, 16_000)
    plain = run(server, "plain", parts, ENDPOINTS, has_speakers=False)
    for name in ("restart", "other", "nan"):
        results, options = Results(), {**SPEAKERS, **ENDPOINTS}
        for number, (part, _) in enumerate(parts):
            if number == 4 and name == "restart":
                server.restart_speakers()
            elif number == 4 and name == "nan":
                compute = server.speakers.steps._steps.step_of_mel
                monkeypatch.setattr(
                    server.speakers.steps._steps, "step_of_mel", lambda *args, f=compute: f(*args) * torch.nan
                )
            has_speakers = number < 4 or name != "other"
            is_end = number == len(parts) - 1
            started = options if not number else None
            results.add(server.send(name, part, not number, is_end, started, has_speakers=has_speakers))
        assert results.texts == plain.texts
        assert any(results.speakers[0]) and not any(results.speakers[-1])
        assert [len(each) for each in results.speakers] == [len(final.words) for final in results.finals]


def test_what_is_not_served_is_rejected(bundled_model, bundle):
    server = SpeakerServer(Checkpoint(bundled_model), bundle, Limits(4, 2))
    found = server.send("a", NO_SAMPLES, start=True, options=SPEAKERS, has_speakers=False)
    assert found.code.name == "SPEAKERS_NOT_SERVED" and "asr_batch_speakers" in found.message
    assert server.table.count_free() == 4
    for name in "abc":
        found = server.send(name, NO_SAMPLES, start=True, options=SPEAKERS)
    assert found.code.name == "STREAM_LIMIT" and "2 speaker streams" in found.message
    assert not isinstance(server.send("d", NO_SAMPLES, start=True), StreamError)


@pytest.mark.parametrize("window", ["file", "live"])
def test_offline_models_have_speakers_too(bundle, samples, window):
    """Results come with polls; the words of a live window wait for the speaker model, files and ends do not."""
    options = {"window": window, **ENDPOINTS}
    ends = (50_000, 50_640) if window == "live" else ()
    found = {}
    for size in (1600, 100_000):
        server = SpeakerServer(Checkpoint(OFFLINE), bundle)
        mode = {"speaker_mode": "file"} if window == "file" else {}
        found[size] = run(server, "a", cut(samples, size, ends), {**options, **SPEAKERS, **mode}, polls=500)
        assert not server.speakers.lost_streams and not server.table.live_streams
        plain = run(server, "b", cut(samples, size, ends), options, polls=500, has_speakers=False)
        assert found[size].texts == plain.texts
    first = found[1600]
    assert len(first.finals) > len(ends) and any(first.speakers)
    assert all(len(final.speakers) == len(final.words) and all(final.speakers) for final in first.finals)
    assert all(one.speakers == first.speakers for one in found.values())
    if window == "file":
        probabilities = Diarizer(bundle).probabilities(torch.from_numpy(samples)).numpy()
        times = [(word.start_ms, word.end_ms) for final in first.finals for word in final.words]
        assert [speaker for each in first.speakers for speaker in each] == speakers_of(times, probabilities, 10)


def test_a_long_file_of_an_offline_model_keeps_the_frames_of_words_to_come(bundle, samples):
    """Polls report the share of the work, which is ahead of the words."""
    whole = np.concatenate([np.zeros(35 * 16_000, np.float32), *[samples] * 5])
    options = {"window": "file", **ENDPOINTS, **SPEAKERS, "speaker_mode": "file"}
    found = run(SpeakerServer(Checkpoint(OFFLINE), bundle), "a", cut(whole, 400_000), options, polls=500)
    probabilities = Diarizer(bundle).probabilities(torch.from_numpy(whole)).numpy()
    times = [(word.start_ms, word.end_ms) for final in found.finals for word in final.words]
    assert len(times) > 50
    assert [speaker for each in found.speakers for speaker in each] == speakers_of(times, probabilities, 10)
