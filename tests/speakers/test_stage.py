"""The stage of the Triton model `speakers`: streams of all ages and modes share steps, and each is as alone."""

import numpy as np
import pytest
import torch

from penstock.errors import ErrorCode, StreamError
from penstock.graphs.program import EagerDriver
from penstock.pipeline.memory.server_memory import speaker_memory
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamTable, slot_count
from penstock.pipeline.stages import speakers as speakers_stage
from penstock.pipeline.stages.audio_rows import AudioRequest, rows_of
from penstock.pipeline.stages.speakers import SpeakerFrames, SpeakerStage, StreamSteps
from penstock.speakers import network as network_module
from penstock.speakers.bundle import SpeakerCheckpoint
from penstock.speakers.diarizer import Diarizer, SpeakerSteps
from penstock.speakers.network import SpeakerNetwork, _PaddedRows
from tests.helpers.tensor_memory import TensorMemory

MODES = ("low_latency", "very_low_latency", "ultra_low_latency", "file")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """A stage with its table."""

    def __init__(self, speaker_bundle: SpeakerCheckpoint, max_streams: int = 4, idle_s: float = 1e9):
        self.clock, ledger = Clock(), SlotLedger(slot_count(max_streams))
        self.table = StreamTable(max_streams, ledger, idle_s, self.clock)
        self.stage = SpeakerStage(speaker_bundle, self.table, ledger)

    def answer(self, *requests: AudioRequest) -> list[SpeakerFrames | StreamError]:
        return self.stage.process([rows_of([request]) for request in requests])

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

    def take(self, answer: SpeakerFrames | StreamError) -> None:
        assert isinstance(answer, SpeakerFrames), answer
        assert answer.first_frame == sum(map(len, self._found))
        self._found.append(answer.probabilities)

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
        compressed.append(int(server.stage.streams._steps.cache.is_compressed.sum()))
        done += [stream for stream in live if stream.is_over]
        live = [stream for stream in live if not stream.is_over]
    assert server.stage.streams.rows > server.stage.streams.steps
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
        AudioRequest("a", noise(needed - 1, 0), True, options={"speaker_mode": mode}),
        AudioRequest("a", noise(1, 1)),
    )
    assert (len(first.probabilities), len(second.probabilities), second.first_frame) == (0, 8 * chunk, 0)
    (end,) = server.answer(AudioRequest("a", noise(0, 0), is_end=True))
    assert (len(end.probabilities), end.first_frame) == (8 * right, 8 * chunk)


def test_what_is_rejected(speaker_bundle):
    server, quiet = Server(speaker_bundle, 1), noise(1600, 0)
    found = server.answer(
        AudioRequest("a", quiet),
        AudioRequest("a", quiet, True, options={"speaker_mode": "fast"}),
        AudioRequest("a", quiet, True, options={"speaker_mode": ["file"]}),
        AudioRequest("a", quiet, True, options={"decoder": "greedy"}),
        AudioRequest("a", quiet, True),
        AudioRequest("b", quiet, True),
        AudioRequest("a", quiet, options={"speaker_mode": "file"}),
        AudioRequest("a", quiet, finalize=True),
        AudioRequest("a", np.full(10, np.nan, np.float32)),
        AudioRequest("a", np.zeros(480_001, np.float32)),
        AudioRequest("a", quiet),
    )
    codes = [answer.code.name if isinstance(answer, StreamError) else "" for answer in found]
    option = "OPTION_INVALID"
    audio = "AUDIO_INVALID"
    assert codes == ["STREAM_NOT_OPEN", *[option] * 3, "", "STREAM_LIMIT", option, option, audio, audio, ""]
    assert "accepted: low_latency, very_low_latency, ultra_low_latency, file" in str(found[1])


def test_a_stream_that_sends_nothing_expires_and_leaves_its_slot(speaker_bundle):
    server = Server(speaker_bundle, 1, idle_s=30.0)
    server.answer(AudioRequest("a", noise(100_000, 0), True))
    server.clock.now = 31.0
    after, started = server.answer(AudioRequest("a", noise(100, 0)), AudioRequest("b", noise(30_000, 1), True, True))
    assert after.code is ErrorCode.STREAM_NOT_OPEN
    np.testing.assert_allclose(
        started.probabilities, Server(speaker_bundle).whole(noise(30_000, 1), MODES[0]), atol=1e-5
    )


def test_streams_that_wait_for_a_long_step_stay_open(speaker_bundle, monkeypatch):
    """Requests of "b" and "c" wait behind a step of a file that takes longer than the idle limit."""
    server = Server(speaker_bundle, 3, idle_s=30.0)
    server.answer(AudioRequest("a", noise(100, 0), True), AudioRequest("b", noise(100, 0), True))
    compute = server.stage.streams._steps.step_of_mel

    def slow(*args):
        server.clock.now += 40.0
        return compute(*args)

    monkeypatch.setattr(server.stage.streams._steps, "step_of_mel", slow)
    server.clock.now += 20.0
    server.answer(AudioRequest("a", noise(40_000, 0)))
    assert server.table.count_free() == 1  # as the metrics do after each step
    server.answer(AudioRequest("c", noise(40_000, 1), True))
    (found,) = server.answer(AudioRequest("b", noise(100, 0)))
    assert isinstance(found, SpeakerFrames)


def test_a_stream_without_numbers_is_lost_and_no_other(speaker_bundle, monkeypatch):
    server = Server(speaker_bundle)
    steps = server.stage.streams._steps
    compute, loud = steps.step_of_mel, noise(40_000, 2)
    quiet = loud / 10

    def spoiled(mel: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        loudness = mel[:, 0].mean(dim=1)
        return compute(mel, numbers).masked_fill((loudness > loudness.min() + 2)[:, None, None], torch.nan)

    monkeypatch.setattr(steps, "step_of_mel", spoiled)
    bad, more, good = server.answer(
        AudioRequest("bad", loud, True), AudioRequest("bad", loud), AudioRequest("good", quiet, True, True)
    )
    assert (bad.code, more.code) == (ErrorCode.STREAM_LOST, ErrorCode.STREAM_LOST)
    assert "NaN" in bad.message
    (after,) = server.answer(AudioRequest("bad", quiet))
    assert after.code is ErrorCode.STREAM_NOT_OPEN
    monkeypatch.undo()
    alone = Server(speaker_bundle).whole(quiet, MODES[0])
    np.testing.assert_allclose(good.probabilities, alone, atol=1e-5)
    for found in server.answer(*(AudioRequest(number, quiet, True, True) for number in range(server.table.slots))):
        np.testing.assert_allclose(found.probabilities, alone, atol=1e-5)


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
    embed = server.stage.streams.network.embed

    def spoiled(mel: torch.Tensor) -> torch.Tensor:
        level = mel.view(-1, 8 * mel.shape[1]).mean(dim=1)
        levels.append(float(level.min()))
        return embed(mel).masked_fill(
            ((level > limit) & (mel.view(len(level), -1) != 0.0).all(dim=1))[:, None], torch.nan
        )

    monkeypatch.setattr(server.stage.streams.network, "embed", spoiled)
    limit = float("inf")
    server.whole(quiet[0], mode)
    limit = min(levels) + 3.0  # loud frames are 4.6 above quiet ones
    every_slot = range(server.table.slots)
    for bad in server.answer(*(AudioRequest(number, loud, True, True, options) for number in every_slot)):
        assert bad.code is ErrorCode.STREAM_LOST and "NaN" in bad.message
    for turn in range(2):
        samples, wanted = quiet[1 - turn], expected[1 - turn]
        for found in server.answer(*(AudioRequest(number, samples, True, True, options) for number in every_slot)):
            np.testing.assert_allclose(found.probabilities, wanted, rtol=0, atol=1e-5)


def test_a_step_that_fails_loses_its_streams_only(speaker_bundle, monkeypatch):
    server = Server(speaker_bundle)
    run = server.stage.streams._steps.step_of_mel
    server.answer(AudioRequest("old", noise(3000, 0), True))

    def fail(*args):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(server.stage.streams._steps, "step_of_mel", fail)
    lost, waiting = server.answer(AudioRequest("new", noise(40_000, 1), True), AudioRequest("old", noise(3000, 1)))
    assert lost.code is ErrorCode.STREAM_LOST
    assert isinstance(waiting, SpeakerFrames)
    monkeypatch.setattr(server.stage.streams._steps, "step_of_mel", run)
    (end,) = server.answer(AudioRequest("old", noise(0, 0), is_end=True))
    assert len(end.probabilities) == 6000 // 160


def test_audio_without_a_log_mel_loses_its_streams(speaker_bundle, monkeypatch):
    server = Server(speaker_bundle)

    def fail(*args):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(server.stage._extractor, "extract", fail)
        lost, restarted = server.answer(*[AudioRequest("a", noise(3000, 0), True)] * 2)
    assert (lost.code, restarted.code) == (ErrorCode.STREAM_LOST, ErrorCode.STREAM_LOST)
    (found,) = server.answer(AudioRequest("a", noise(3000, 0), True, True))
    assert len(found.probabilities) == 3000 // 160


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
    assert frames[-1].first_frame + len(frames[-1].probabilities) >= 5 * 3000 - 8 * (34 + 6)


def test_steps_with_a_static_window_are_those_without(speaker_bundle, monkeypatch):
    """On a CUDA device, too, rows pad each batch, and streams of all ages and modes have one shape."""
    plain = Server(speaker_bundle)
    monkeypatch.setattr(speakers_stage, "select_step_driver", lambda mode, device: EagerDriver())
    static = Server(speaker_bundle)
    assert static.stage.streams._captured is not None
    for at in range(12):
        requests = [
            AudioRequest(
                mode, noise(20_000 + 7000 * i, at), at == 0, at == 11, {"speaker_mode": mode} if at == 0 else {}
            )
            for i, mode in enumerate(MODES)
        ]
        for wanted, found in zip(plain.answer(*requests), static.answer(*requests), strict=True):
            assert found.first_frame == wanted.first_frame
            np.testing.assert_allclose(found.probabilities, wanted.probabilities, rtol=0, atol=1e-5)


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
