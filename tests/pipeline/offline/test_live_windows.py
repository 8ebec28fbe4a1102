"""Live streams of an offline model: each window's frames, words as they come, and what ends a stream early."""

from collections.abc import Hashable

import numpy as np
import pytest
import torch

from penstock import StreamingRecognizer
from penstock.encoder.window.attention import Chunks
from penstock.encoder.window.encoder import WindowEncoder
from penstock.errors import ErrorCode, StreamError
from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import WindowMel
from penstock.model.bundle import Checkpoint
from penstock.model.nemo.importer import import_nemo
from penstock.pipeline.offline import jobs as window_jobs
from penstock.pipeline.offline.features import WindowLimits
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.stream_options import OptionReader
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.pipeline.stages.decoder import DecoderStage
from tests.helpers.golden import golden_samples
from tests.helpers.offline_models import offline_bundle, unified_document, write_offline_nemo
from tests.helpers.stage_requests import DecoderRequest, decode
from tests.helpers.window_server import NO_SAMPLES, RATE_HZ, Upload, WindowServer

FRAME = 1280
LEFT, CHUNK, RIGHT = 10, 6, 3
WINDOW = {"window": "0.8,0.48,0.24"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return offline_bundle(tmp_path_factory.mktemp("live"), "tdt_hybrid")


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """4.9 s."""
    return np.concatenate([golden_samples(name).numpy() for name in ("medium", "short", "long")])


@pytest.fixture(scope="module")
def reference(checkpoint):
    """The model on each window alone."""
    tensors = checkpoint.tensors("features.")
    log_mel = LogMel(checkpoint.config.features, tensors["features.window"], tensors["features.mel_filterbank"])
    mel, encoder = WindowMel(log_mel), WindowEncoder(checkpoint)

    def encode(samples: np.ndarray, left=LEFT, chunk=CHUNK, right=RIGHT) -> torch.Tensor:
        """Frames [T, D]: cut by cut, as long as a chunk's right context is there; then all that is left."""
        audio, found, new = torch.from_numpy(samples), [torch.zeros(0, checkpoint.config.encoder.d_model)], 0
        while True:
            begin, end = max(new - left, 0), new + chunk + right
            is_last = end * FRAME > len(samples)
            frames = encoder.encode([mel(audio[begin * FRAME : None if is_last else end * FRAME])])[0]
            found.append(frames[new - begin : None if is_last else new - begin + chunk])
            if is_last:
                return torch.cat(found)
            new += chunk

    return encode


@pytest.fixture
def server(checkpoint) -> WindowServer:
    return WindowServer(checkpoint)


def watched(server: WindowServer) -> dict[Hashable, list[torch.Tensor]]:
    """Frames that the encoder passes on from now on, by stream."""
    frames: dict[Hashable, list[torch.Tensor]] = {}
    process = server.encoder.process_tickets

    def watch(tickets, mels):
        replies = process(tickets, mels)
        for reply in replies:
            for row, part in zip(reply.rows, reply.encoded.split(reply.rows[:, 7].tolist()), strict=True):
                frames.setdefault(server.table.stream_in(int(row[0])), []).append(part)
        return replies

    server.encoder.process_tickets = watch
    return frames


def is_freed(server: WindowServer) -> bool:
    server.send("probe", start=True, end=True)
    encoder, features = server.encoder, server.features
    left = (features._files, features.samples_held, encoder._files, encoder._queue.jobs, server.table.live_streams)
    return left == ({}, 0, {}, [], 0)


def decoded(checkpoint: Checkpoint, frames: torch.Tensor, samples: int, options: dict) -> list[tuple]:
    """Segments of frames [T, D] that are decoded at once."""
    if not len(frames):
        return [("", [], [])]
    read = OptionReader(checkpoint, DecodingConfig()).read(options)
    stage = DecoderStage(checkpoint, 1, SlotLedger(1))
    (result,) = decode(stage, [DecoderRequest(Lease(0, 1), frames, samples, True, True, read)])
    return [(each.text, [t[:3] for t in each.tokens], [w[:3] for w in each.words]) for each in result.entries]


@pytest.mark.parametrize("step_s", [0.0, 60.0], ids=["a block for each call", "whole jobs"])
def test_frames_are_those_of_each_window_alone(checkpoint, speech, reference, step_s, monkeypatch):
    """For any cut of the audio, beside other streams and files; each stream ends at another offset of the grid."""
    monkeypatch.setattr(window_jobs, "STEP_S", step_s)
    server = WindowServer(checkpoint, max_streams=16)
    frames = watched(server)
    lengths = [1, 159, 160, 1279, 1281, FRAME * 9 - 1, FRAME * 9, FRAME * 9 + 1, FRAME * 15 + 160, 40_000, len(speech)]
    streams = {number: Upload(speech[-size:], WINDOW) for number, size in enumerate(lengths)}
    streams |= {"file": Upload(speech[:20_000]), "long": Upload(speech[:9_000], {"window": "long"})}
    done = server.transcribe(streams, request_samples=3_000 if step_s else 7_777)
    assert not any(one.errors for one in done.values()) and is_freed(server)
    for (samples, options), name in zip(streams.values(), streams, strict=True):
        if options == WINDOW:
            expected = reference(samples)
            assert len(expected) == -(-(len(samples) // 160) // 8)
            torch.testing.assert_close(torch.cat(frames[name]), expected, rtol=0, atol=1e-4)
            assert [tuple(one) for one in done[name].segments] == decoded(checkpoint, expected, len(samples), options)


@pytest.mark.parametrize("options", [{}, {"decoder": "alsd", "n_best": 2}, {"decoder": "ctc"}], ids=str)
def test_words_come_chunk_by_chunk(checkpoint, speech, reference, options):
    recognizer = StreamingRecognizer(checkpoint.directory)
    stream, covered = recognizer.open_stream(options=WINDOW | options), []
    for begin in range(0, len(speech), 2000):
        covered.append(stream.push(speech[begin : begin + 2000]).audio_processed_s)
        due = max((min(begin + 2000, len(speech)) // FRAME - RIGHT) // CHUNK, 0) * CHUNK * 0.08
        assert covered[-1] == pytest.approx(due)
    last = stream.finish()
    assert last.is_final and last.audio_processed_s == len(speech) / RATE_HZ
    recognizer.table.close_due()
    assert recognizer.table.count_free() == 16
    ((text, tokens, words),) = decoded(checkpoint, reference(speech), len(speech), WINDOW | options)
    assert (last.text, [t[:3] for t in stream.tokens], [w[:3] for w in stream.words]) == (text, tokens, words)
    assert len(tokens) > 5 and len(last.alternatives) == options.get("n_best", 0)


def test_endpoints_do_not_depend_on_the_requests(tmp_path, speech):
    checkpoint = offline_bundle(tmp_path, "rnnt_hybrid")
    audio = np.concatenate([speech[:30_000], np.zeros(24_000, np.float32), speech[:30_000]])
    found = []
    for size in (1_000, 50_000):
        server = WindowServer(checkpoint, decoding=DecodingConfig(endpoint_silence_ms=200))
        done = server.transcribe({"a": Upload(audio, WINDOW)}, size)["a"]
        ends = [entry.audio_processed_s for one in done.replies for entry in one.entries if entry.is_final]
        found.append((done.segments, ends))
    assert found[0] == found[1] and len(found[0][1]) > 2
    ends = [round(end_s / 0.08, 4) for end_s in found[0][1] if end_s * RATE_HZ < len(audio)]
    assert ends == [end for end in ends if end % CHUNK == 0]


@pytest.mark.parametrize("has_end", [False, True])
def test_requests_of_a_stream_in_one_batch(checkpoint, speech, reference, has_end, monkeypatch):
    """The first one's reply may have the words of the last one's audio; has_end: also of the stream's rest."""
    monkeypatch.setattr(window_jobs, "STEP_S", 60.0)
    server, samples = WindowServer(checkpoint), speech[:40_000]
    parts = [AudioRequest("a", samples[begin : begin + 4000], begin == 0) for begin in range(0, 40_000, 4000)]
    parts[0] = AudioRequest("a", samples[:4000], True, False, WINDOW)
    end = AudioRequest("a", NO_SAMPLES, False, True)
    replies = server.call(*parts, end) if has_end else [*server.call(*parts), *server.call(end)]
    while not replies[-1].is_final:
        replies += server.poll("a")
    ((text, tokens, _),) = decoded(checkpoint, reference(samples), len(samples), WINDOW)
    assert (replies[-1].text, [t[:3] for one in replies for t in one.tokens]) == (text, tokens)
    covered = len(samples) if has_end else 4 * CHUNK * FRAME
    assert replies[0].tokens and replies[0].audio_processed_s == covered / RATE_HZ


@pytest.mark.parametrize("step_s", [0.0, 60.0])
def test_a_finalized_segment_is_a_stream_of_its_own(checkpoint, speech, reference, step_s, monkeypatch):
    """Wherever it ends; audio that comes before its result has the next request."""
    monkeypatch.setattr(window_jobs, "STEP_S", step_s)
    recognizer = StreamingRecognizer(checkpoint.directory)
    for end in (0, 100, 20_000, 9 * FRAME, 12 * FRAME + 1):
        stream = recognizer.open_stream(options=WINDOW)
        stream.push(speech[: end // 2])
        first = stream.finalize(speech[end // 2 : end])
        last = stream.finish(speech[end : end + 20_000])
        assert first.is_final and last.is_final and last.segment == first.segment + 1
        assert (first.audio_processed_s, last.audio_processed_s) == (end / RATE_HZ, (end + 20_000) / RATE_HZ)
        for segment, part in ((first, speech[:end]), (last, speech[end : end + 20_000])):
            ((text, _, _),) = decoded(checkpoint, reference(part), len(part), WINDOW)
            assert segment.text == text, end
    server = WindowServer(checkpoint)
    server.send("a", speech[:30_000], start=True, options=WINDOW)
    replies = server.call(
        AudioRequest("a", NO_SAMPLES, finalize=True),
        AudioRequest("a", speech[30_000:60_000]),
        AudioRequest("a", NO_SAMPLES, finalize=True),
        AudioRequest("a", NO_SAMPLES, is_end=True),
    )
    while not replies[-1].is_final or replies[-1].segment < 2:
        replies += server.poll("a")
    finals = [entry for one in replies for entry in one.entries if entry.is_final]
    assert [(one.segment, one.audio_processed_s) for one in finals] == [(0, 1.875), (1, 3.75), (2, 3.75)]
    assert is_freed(server)


def test_live_windows_are_encoded_with_files_and_before_longer_ones(checkpoint, speech, monkeypatch):
    monkeypatch.setattr(window_jobs, "STEP_S", 0.0)
    server = WindowServer(checkpoint)
    server.send("live", speech[: 9 * FRAME - 1], start=True, options=WINDOW)
    server.send("short", speech[:5000], start=True)
    server.send("long", np.tile(speech, 4), start=True)
    requests = [("live", speech[:1], False), ("short", NO_SAMPLES, True), ("long", NO_SAMPLES, True)]
    server.call(*(AudioRequest(name, samples, is_end=is_end) for name, samples, is_end in requests))
    kinds = [[window.is_live for window in job.windows] for job in server.encoder._queue.jobs]
    assert kinds == [[True, False], [False]]
    while len(server.encoder._queue.jobs) == 2:
        server.poll("live")
    assert not server.encoder._queue.jobs[0].is_live and server.encoder._queue.jobs[0].progress < 0.5


@pytest.mark.parametrize("how", ["cancel", "expire", "fail"])
def test_nothing_remains_of_a_stream_that_ends_early(checkpoint, speech, how, monkeypatch):
    monkeypatch.setattr(window_jobs, "STEP_S", 0.0)
    server = WindowServer(checkpoint)
    server.send("a", speech, start=True, options=WINDOW)
    assert server.encoder._queue.jobs
    if how == "cancel":
        server.send("a", end=True)
        assert server.send("a", end=True).is_final
    elif how == "expire":
        server.now_s += 31
    else:
        monkeypatch.setattr(torch, "softmax", lambda *_, **__: 1 / 0)
        while not isinstance(reply := server.poll("a")[0], StreamError):
            continue
        assert reply.code is ErrorCode.STREAM_LOST
    assert is_freed(server)


def test_audio_that_the_encoder_cannot_follow_waits_as_samples(checkpoint, speech, monkeypatch):
    monkeypatch.setattr(window_jobs, "STEP_S", 0.0)
    server = WindowServer(checkpoint, limits=WindowLimits(3600 * RATE_HZ, 35 * RATE_HZ))
    minute = {"window": "28.8,0.08,0"}
    server.send("a", np.tile(speech, 4), start=True, options=minute)
    assert server.encoder._files[max(server.encoder._files)].cut == 4 and server.features.samples_held > 28 * RATE_HZ
    full = server.send("b", speech, start=True, options=minute)
    assert full.code is ErrorCode.AUDIO_MEMORY_FULL
    assert server.send("a", np.tile(speech, 4)).code is ErrorCode.AUDIO_MEMORY_FULL
    assert is_freed(server)


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        ("10,2.05,2", "2.05 s is no multiple of 80 ms, a frame of the model, as 2 s or 2.08 s"),
        ("10,0,2", "the chunk has at least 80 ms"),
        ("50,8,8", "a window has at most 60 s"),
        ("1.2.3,2,2", "'1.2.3' is no number"),
        ("10,2", "accepted: file, long, live"),
        ("-1,2,2", "accepted: file, long, live"),
    ],
)
def test_wrong_windows_are_named(checkpoint, window, problem):
    recognizer = StreamingRecognizer(checkpoint.directory)
    with pytest.raises(StreamError, match=r"OPTION_INVALID: window is .*LEFT,CHUNK,RIGHT in seconds") as caught:
        recognizer.open_stream(options={"window": window})
    assert problem in caught.value.message


@pytest.fixture(scope="module")
def unified(tmp_path_factory) -> Checkpoint:
    """A model with attention by chunks."""
    folder = tmp_path_factory.mktemp("unified")
    return import_nemo(write_offline_nemo(folder / "a.nemo", "rnnt_hybrid", unified_document), folder / "bundle")


def test_a_unified_model_attends_by_chunks_in_its_live_windows(unified, speech, reference):
    """And to everything in files, beside each other."""
    server = WindowServer(unified)
    frames = watched(server)
    streams = {"live": Upload(speech, {"window": "5.6,0.16,0.08"}), "file": Upload(speech)}
    server.transcribe(streams, 5000)
    tensors = unified.tensors("features.")
    mel_of = WindowMel(LogMel(unified.config.features, tensors["features.window"], tensors["features.mel_filterbank"]))
    audio, encoder = torch.from_numpy(speech), WindowEncoder(unified)
    (whole,) = encoder.encode([mel_of(audio)])
    torch.testing.assert_close(torch.cat(frames["file"]), whole, rtol=0, atol=1e-4)
    live = torch.cat(frames["live"])
    for new in range(0, len(speech) // FRAME - 3, 2):
        begin, end = max(new - 70, 0), new + 3
        (expected,) = encoder.encode([mel_of(audio[begin * FRAME : end * FRAME])], [Chunks(70, 2, 1)])
        torch.testing.assert_close(live[new : new + 2], expected[new - begin : new - begin + 2], rtol=0, atol=1e-4)


def test_a_unified_model_has_only_the_windows_of_its_training(unified):
    recognizer = StreamingRecognizer(unified.directory)
    assert recognizer.chunk_samples() == recognizer.chunk_samples({"window": "5.6,1.04,1.04"}) == 13 * FRAME
    for window in ("10,2,2", "5.6,0.24,1.04", "5.6,1.04,0.16"):
        with pytest.raises(
            StreamError, match=r"trained with LEFT 5\.6, CHUNK 0\.08 0\.16 0\.56 1\.04, RIGHT 0 0\.08 1\.04"
        ):
            recognizer.open_stream(options={"window": window})


def test_a_streaming_model_has_no_windows(bundled_model):
    with pytest.raises(StreamError, match="window is 'live', but the model is a streaming one: leave it out"):
        StreamingRecognizer(bundled_model).open_stream(options={"window": "live"})
