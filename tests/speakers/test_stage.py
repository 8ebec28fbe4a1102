"""The stage of the Triton model `speakers`: streams of all ages and modes share steps, and each is as alone."""

import itertools

import numpy as np
import pytest
import torch

from penstock.errors import ErrorCode, StreamError
from penstock.graphs.program import EagerDriver
from penstock.pipeline.memory.server_memory import speaker_memory
from penstock.pipeline.results.speakers import LOST, RowFrames
from penstock.pipeline.slots.drain import DrainBoard
from penstock.pipeline.slots.table import slot_count
from penstock.pipeline.slots.ticket import END, FINALIZE, SPEAKER_MODE, START, Column, Ticket
from penstock.pipeline.stages import speakers as speakers_stage
from penstock.pipeline.stages.audio_rows import AudioRequest, SpeakerAudio
from penstock.pipeline.stages.speakers import SpeakerStage, StreamSteps
from penstock.speakers import network as network_module
from penstock.speakers.bundle import SpeakerCheckpoint
from penstock.speakers.diarizer import Diarizer, SpeakerSteps
from penstock.speakers.network import SpeakerNetwork, _PaddedRows
from tests.helpers.tensor_memory import TensorMemory

MODES = ("low_latency", "very_low_latency", "ultra_low_latency", "file")
EVERY_PLACE = range(6)
"""Places for four streams."""


class Server:
    """The stage, and leases as the features stage gives them: a slot for each name that starts."""

    def __init__(self, speaker_bundle: SpeakerCheckpoint, max_streams: int = 4):
        self.board = DrainBoard(64)
        self.stage = SpeakerStage(speaker_bundle, max_streams, self.board)
        self._leases: dict[str, list[int]] = {}
        self._slots = itertools.count()

    def answer(self, *requests: AudioRequest) -> list[RowFrames]:
        """The answers to requests of one batch, one row each."""
        rows = [self._row(request) for request in requests]
        audio = [
            SpeakerAudio(one.samples, np.array([len(one.samples)]), np.array([row[Column.FLAGS] % SPEAKER_MODE]))
            for one, row in zip(requests, rows, strict=True)
        ]
        answers = self.stage.process_tickets([Ticket(row[np.newaxis]) for row in rows], audio)
        assert not any(isinstance(one, StreamError) for one in answers)
        assert all(one.problem(1) is None for one in answers)
        return [one.by_row()[0] for one in answers]

    def _row(self, request: AudioRequest) -> np.ndarray:
        flags = START * request.is_start + END * request.is_end + FINALIZE * request.finalize
        if request.is_start:
            slot = next(self._slots) % 64
            self._leases[request.stream_id] = [slot, slot + 1, 0]
            self.board.times_ns[slot], self.board.generations[slot] = 1, slot + 1
            if mode := request.options.get("speaker_mode", "low_latency"):
                flags += SPEAKER_MODE * (1 + MODES.index(mode))
        slot, generation, number = lease = self._leases[request.stream_id]
        lease[2] += 1
        return np.array([slot, generation, number, flags, 0, 0, 0, 0])

    def over(self, name: str) -> None:
        """The stream ends without a row here."""
        self.board.times_ns[self._leases[name][0]] = 0

    def whole(self, samples: np.ndarray, mode: str) -> np.ndarray:
        """All probabilities of a stream that is sent by itself."""
        parts = np.split(samples, range(400_000, len(samples), 400_000))
        stream = Sent("whole", samples, mode, iter(map(len, parts)))
        while not stream.is_over:
            stream.take(*self.answer(stream.next()))
        return stream.probabilities


class Sent:
    """A stream whose audio is sent in parts of any length."""

    def __init__(self, name: str, samples: np.ndarray, mode: str, lengths):
        self._name, self._samples, self._mode, self._lengths, self._at = name, samples, mode, lengths, 0
        self._found: list[np.ndarray] = []
        self._has_begun = self.is_over = False

    def next(self) -> AudioRequest:
        start, length = self._at, next(self._lengths)
        self._at = min(start + length, len(self._samples))
        options = {} if self._has_begun else {"speaker_mode": self._mode}
        is_first, self._has_begun = not self._has_begun, True
        self.is_over = self._at == len(self._samples)
        return AudioRequest(self._name, self._samples[start : self._at], is_first, self.is_over, options)

    def take(self, answer: RowFrames) -> None:
        assert answer.first == sum(map(len, self._found))
        self._found.append(answer.decided)

    @property
    def probabilities(self) -> np.ndarray:
        return np.concatenate(self._found)


def noise(samples: int, seed: int) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32)


def lengths(seed: int):
    generator = np.random.default_rng(seed)
    while True:
        yield int(generator.choice([0, 1, 160, 1600, 5000, 23_456, 100_000]))


def test_streams_of_all_ages_and_modes_are_as_alone(speaker_bundle):
    """Streams of 0 to 40 s begin at different times, in parts of random lengths, in slots that are used again."""
    server, alone, diarizer = Server(speaker_bundle), Server(speaker_bundle, 1), Diarizer(speaker_bundle)
    counts = [0, 100, 1599, 16_000, 36_480, 60_001, 200_000, 640_000]
    samples = {f"{mode} {count}": noise(count, count) for count in counts for mode in MODES}
    waiting = [Sent(name, audio, name.split()[0], lengths(len(name) + len(audio))) for name, audio in samples.items()]
    live: list[Sent] = []
    done: list[Sent] = []
    compressed: list[int] = []
    while waiting or live:
        live += [waiting.pop() for _ in range(min(len(waiting), 4 - len(live), 2))]
        twice = [stream for stream in live for _ in range(2)]  # requests of a stream may share a batch
        requests = [(stream, stream.next()) for stream in twice if not stream.is_over]
        for (stream, _), answer in zip(requests, server.answer(*(request for _, request in requests)), strict=True):
            stream.take(answer)
        compressed.append(int(server.stage.steps._steps.cache.is_compressed.sum()))
        done += [stream for stream in live if stream.is_over]
        live = [stream for stream in live if not stream.is_over]
    assert server.stage.steps.rows > server.stage.steps.steps
    assert sum(compressed) > 3
    for stream in done:
        mode, count = stream._mode, len(stream._samples)
        assert stream.probabilities.shape == (count // 160, 8)
        expected = diarizer.probabilities(torch.from_numpy(stream._samples)).numpy() if mode == "file" else None
        wanted = alone.whole(stream._samples, mode) if expected is None else expected
        np.testing.assert_allclose(stream.probabilities, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("mode", "chunk", "right"), [("low_latency", 9, 4), ("ultra_low_latency", 3, 1)])
def test_a_chunk_is_decided_when_its_look_ahead_has_come(speaker_bundle, mode, chunk, right):
    server = Server(speaker_bundle)
    needed = (chunk + right) * 1280 + 40  # half a window more than its frames
    first, second = server.answer(
        AudioRequest("a", noise(needed - 1, 0), True, options={"speaker_mode": mode}), AudioRequest("a", noise(1, 1))
    )
    assert (len(first.decided), len(second.decided), second.first) == (0, 8 * chunk, 0)
    (end,) = server.answer(AudioRequest("a", noise(0, 0), is_end=True))
    assert (len(end.decided), end.first) == (8 * right, 8 * chunk)


@pytest.mark.parametrize(
    "mode",
    [MODES[0], MODES[3], *(pytest.param(mode, marks=pytest.mark.nightly) for mode in MODES[1:3])],
)
def test_ends_of_segments_by_the_client_change_no_later_frame(speaker_bundle, mode):
    """In the first frame, in the first 80 ms, before the look-ahead, twice in a row, and long after the start."""
    samples, server, options = noise(700_000, 7), Server(speaker_bundle), {"speaker_mode": mode}
    places = [0, 100, 700, 1200, 1280, 1320, 20_000, 20_000, 20_160, 60_001, 500_000]
    expected, found = Server(speaker_bundle).whole(samples, mode), []
    for begin, end in itertools.pairwise([0, *places]):
        alone = Server(speaker_bundle).whole(samples[:end], mode)
        request = AudioRequest("a", samples[begin:end], not found, False, options, finalize=True)
        (row, other) = server.answer(request, AudioRequest("b", samples[begin:end], not found))
        found.append(row.decided)
        assert other.copied is None
        # All frames up to there are known, as if the stream had ended.
        np.testing.assert_allclose(np.concatenate([*found, row.copied]), alone, rtol=0, atol=1e-5)
    (last,) = server.answer(AudioRequest("a", samples[places[-1] :], is_end=True))
    np.testing.assert_allclose(np.concatenate([*found, last.decided]), expected, rtol=0, atol=1e-5)


def test_rows_of_streams_that_did_not_ask_and_of_unknown_ones_have_no_frames(speaker_bundle):
    server, restarted = Server(speaker_bundle), Server(speaker_bundle)
    silent, known = server.answer(
        AudioRequest("a", noise(40_000, 0), True, options={"speaker_mode": None}), AudioRequest("b", noise(9, 0), True)
    )
    assert (silent.first, len(silent.decided), known.first) == (LOST, 0, 0)
    server.stage = restarted.stage
    (after,) = server.answer(AudioRequest("b", noise(40_000, 0)))
    assert (after.first, len(after.decided)) == (LOST, 0)
    assert server.stage.steps.rows == 0


def test_a_stream_with_a_missing_request_is_lost(speaker_bundle):
    server = Server(speaker_bundle)
    server.answer(AudioRequest("a", noise(100, 0), True))
    server._row(AudioRequest("a", noise(100, 0)))  # Triton has dropped it
    for _ in range(2):
        (found,) = server.answer(AudioRequest("a", noise(40_000, 0)))
        assert found.first == LOST
    assert server.stage.lost_streams == 1


def test_places_are_those_of_streams_that_go_on(speaker_bundle):
    """Streams in hundreds of slots take turns in six places; the ends of some never come here."""
    server, alone = Server(speaker_bundle, 4), Server(speaker_bundle).whole(noise(30_000, 1), MODES[0])
    for number in range(40):
        if number % 3:
            (found,) = server.answer(AudioRequest("ends", noise(30_000, 1), True, True))
            np.testing.assert_allclose(found.decided, alone, rtol=0, atol=1e-5)
        else:
            server.answer(AudioRequest("open", noise(50_000, number), True))
            server.over("open")
    assert not server.stage.lost_streams


def test_samples_that_are_not_those_of_the_ticket_are_rejected(speaker_bundle):
    stage = Server(speaker_bundle).stage
    ticket = Ticket(np.array([[0, 1, 0, START + SPEAKER_MODE, 0, 0, 0, 0]]))
    for samples, lengths in ((10, [9]), (10, [5, 5]), (10, [-10]), (0, [])):
        sent = SpeakerAudio(noise(samples, 0), np.array(lengths, np.int64), np.zeros(len(lengths), np.int64))
        (found,) = stage.process_tickets([ticket], [sent])
        assert found.code is ErrorCode.REQUEST_INVALID
    forged = StreamError(ErrorCode.REQUEST_INVALID, "forged")
    assert stage.process_tickets([forged], [sent]) == [forged]


def test_a_stream_without_numbers_is_lost_and_no_other(speaker_bundle, monkeypatch, caplog):
    server = Server(speaker_bundle)
    steps = server.stage.steps._steps
    compute, loud = steps.step_of_mel, noise(40_000, 2)
    quiet = loud / 10

    def spoiled(mel: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        loudness = mel[:, 0].mean(dim=1)
        return compute(mel, numbers).masked_fill((loudness > loudness.min() + 2)[:, None, None], torch.nan)

    monkeypatch.setattr(steps, "step_of_mel", spoiled)
    bad, more, good = server.answer(
        AudioRequest("bad", loud, True), AudioRequest("bad", loud), AudioRequest("good", quiet, True, True)
    )
    assert (bad.first, more.first) == (LOST, LOST)
    assert "NaN" in caplog.text
    (after,) = server.answer(AudioRequest("bad", quiet))
    assert after.first == LOST
    monkeypatch.undo()
    alone = Server(speaker_bundle).whole(quiet, MODES[0])
    np.testing.assert_allclose(good.decided, alone, atol=1e-5)
    for found in server.answer(*(AudioRequest(number, quiet, True, True) for number in EVERY_PLACE)):
        np.testing.assert_allclose(found.decided, alone, atol=1e-5)


@pytest.mark.parametrize("mode", ["low_latency", "file"])
@pytest.mark.parametrize("is_padded", [False, True])
def test_frames_without_numbers_stay_in_their_stream(speaker_bundle, monkeypatch, mode, is_padded):
    """Loud frames become NaN, and so do queue and cache. is_padded: steps as on a CUDA device."""
    if is_padded:
        monkeypatch.setattr(speakers_stage, "select_step_driver", lambda mode, device: EagerDriver())
        monkeypatch.setattr(network_module, "_PackedRows", lambda is_valid, lengths: _PaddedRows(is_valid))
    loud, options = noise(200_000, 2), {"speaker_mode": mode}
    quiet = [loud[:count] / 10 for count in (200_000, 5000)]
    expected = [Server(speaker_bundle).whole(samples, mode) for samples in quiet]
    server, levels = Server(speaker_bundle, 1), []
    embed = server.stage.steps.network.embed

    def spoiled(mel: torch.Tensor) -> torch.Tensor:
        level = mel.view(-1, 8 * mel.shape[1]).mean(dim=1)
        levels.append(float(level.min()))
        return embed(mel).masked_fill(
            ((level > limit) & (mel.view(len(level), -1) != 0.0).all(dim=1))[:, None], torch.nan
        )

    monkeypatch.setattr(server.stage.steps.network, "embed", spoiled)
    limit = float("inf")
    server.whole(quiet[0], mode)
    limit = min(levels) + 3.0  # loud frames are 4.6 above quiet ones
    for bad in server.answer(*(AudioRequest(number, loud, True, True, options) for number in range(3))):
        assert bad.first == LOST
    for turn in range(2):
        samples, wanted = quiet[1 - turn], expected[1 - turn]
        for found in server.answer(*(AudioRequest(number, samples, True, True, options) for number in range(3))):
            np.testing.assert_allclose(found.decided, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), TypeError("a fault in the code")])
def test_what_fails_loses_its_streams_only(speaker_bundle, monkeypatch, error):
    """Each row of a ticket has a reply in any case."""
    server = Server(speaker_bundle)
    server.answer(AudioRequest("old", noise(3000, 0), True))

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(server.stage.steps._steps, "step_of_mel", fail)
        (lost,) = server.answer(AudioRequest("new", noise(40_000, 1), True))
    with monkeypatch.context() as patch:
        patch.setattr(server.stage._extractor, "extract", fail)
        (also,) = server.answer(AudioRequest("newer", noise(40_000, 1), True))
    assert (lost.first, also.first) == (LOST, LOST)
    rest, end = server.answer(AudioRequest("old", noise(3000, 1)), AudioRequest("old", noise(0, 0), is_end=True))
    assert (rest.first, len(end.decided)) == (0, 6000 // 160)
    (found,) = server.answer(AudioRequest("new", noise(3000, 0), True, True))
    assert len(found.decided) == 3000 // 160


def test_a_captured_step_reads_nothing_on_the_host(speaker_bundle):
    """Tensors without values stand for a CUDA device's: any such read raises an error."""
    meta = torch.device("meta")
    network = SpeakerNetwork(
        speaker_bundle.config, {name: one.to(meta) for name, one in speaker_bundle.tensors().items()}
    )
    steps, frames = SpeakerSteps(network, speaker_bundle.config.live_queue, 5), 13
    size = speaker_bundle.config.cache.frames + speaker_bundle.config.live_queue.frames + frames
    mel = torch.zeros(4, frames, 8 * speaker_bundle.config.features.mel_bins, device=meta)
    found = steps.step_of_mel(mel, torch.zeros(4, 4, dtype=torch.int64, device=meta), size)
    assert found.shape == (4, 8 * frames, 8)


@pytest.mark.parametrize("mode", ["low_latency", "file"])
def test_the_memory_of_a_long_silence_is_flat(speaker_bundle, mode):
    server, part = Server(speaker_bundle, 1), np.zeros(480_000, np.float32)
    with TensorMemory() as memory:
        server.answer(AudioRequest("a", part, True, options={"speaker_mode": mode}))
        before = memory.alive_bytes
        frames = [server.answer(AudioRequest("a", part))[0] for _ in range(4)]
        assert memory.alive_bytes == before
    assert frames[-1].first + len(frames[-1].decided) >= 5 * 3000 - 8 * (34 + 6)


def test_steps_with_a_static_window_are_those_without(speaker_bundle, monkeypatch):
    """On a CUDA device, too, rows pad each batch, and streams of all ages and modes have one shape."""
    plain = Server(speaker_bundle)
    monkeypatch.setattr(speakers_stage, "select_step_driver", lambda mode, device: EagerDriver())
    static = Server(speaker_bundle)
    assert static.stage.steps._captured is not None
    for at in range(12):
        requests = [
            AudioRequest(
                mode,
                noise(20_000 + 7000 * i, at),
                at == 0,
                at == 11,
                {"speaker_mode": mode} if at == 0 else {},
                at % 3 == 1,
            )
            for i, mode in enumerate(MODES)
        ]
        for wanted, found in zip(plain.answer(*requests), static.answer(*requests), strict=True):
            assert found.first == wanted.first
            np.testing.assert_allclose(found.decided, wanted.decided, rtol=0, atol=1e-5)
            if at % 3 == 1:
                np.testing.assert_allclose(found.copied, wanted.copied, rtol=0, atol=1e-5)


@pytest.mark.parametrize("number_bytes", [4, 2])
def test_the_memory_is_what_was_computed(speaker_bundle, number_bytes):
    network = SpeakerNetwork(
        speaker_bundle.config, speaker_bundle.tensors(), {4: torch.float32, 2: torch.float16}[number_bytes]
    )
    streams, memory = StreamSteps(network, slot_count(4)), speaker_memory(speaker_bundle.config, 4, number_bytes)
    cache = streams._steps.cache
    held = (cache.frames, cache.probabilities, cache.queue)
    assert memory.streams == sum(tensor.nbytes for tensor in held)
    assert memory.waiting == streams._mel.nbytes
