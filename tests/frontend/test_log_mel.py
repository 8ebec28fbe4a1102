"""The streaming front end equals the offline one for any requests, any end and any other streams in the batch."""

import random

import numpy as np
import pytest
import torch

from penstock.frontend.log_mel import FeatureExtractor
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from tests.helpers.golden import SIGNALS, golden_cases, golden_samples
from tests.helpers.reference.log_mel import FLOAT32, FLOAT64, LogMelReference, log_mel_reference
from tests.helpers.streaming import MelChunks, cut, extract, make_extractor, real_frames

FRONT_ENDS = {case.front_end: case for case in golden_cases()}
NO_SAMPLES = np.zeros(0, np.float32)


def push(
    extractor: FeatureExtractor, slot: int, samples: np.ndarray, is_last: bool = False, is_first: bool = False
) -> MelChunks:
    (reply,) = extract(extractor, [slot], [samples], [is_last], [is_first])
    return reply


def stream(extractor: FeatureExtractor, samples: np.ndarray, requests, slot: int = 0) -> list[MelChunks]:
    """Opens `slot` and pushes the slices `requests`, then an end without samples."""
    push(extractor, slot, NO_SAMPLES, is_first=True)
    replies = [push(extractor, slot, samples[request]) for request in requests]
    return [*replies, push(extractor, slot, NO_SAMPLES, is_last=True)]


def mel_of(extractor: FeatureExtractor, replies: list[MelChunks]) -> torch.Tensor:
    return real_frames(replies, extractor.geometry.virtual_mel_frames)


def reference(checkpoint: Checkpoint, samples: torch.Tensor, unit_roundoff: float = FLOAT32) -> LogMelReference:
    tensors = checkpoint.tensors("features.")
    window, filterbank = tensors["features.window"], tensors["features.mel_filterbank"]
    return log_mel_reference(checkpoint.config.features, window, filterbank, samples, unit_roundoff)


def assert_rounded(found: torch.Tensor, expected: LogMelReference) -> None:
    """`found` is the reference but for the rounding of each bin."""
    assert found.shape == expected.mel.shape
    error = (found - expected.mel).abs() / expected.rounding
    assert (error <= 1).all(), f"{error.max():.2f} times the bound"


@pytest.fixture
def extractor(golden_bundle) -> FeatureExtractor:
    """Chunks of 16 frames, of which the first has 7 virtual ones."""
    return make_extractor(golden_bundle("rnnt_hybrid"), AttentionContext(6, 1), slots=4)


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_the_plain_front_end_is_that_of_nemo(golden_bundle, front_end, signal):
    """NeMo's featurizer in float64, rounded to float32 once, when it was stored."""
    case = FRONT_ENDS[front_end]
    mel, rounding = reference(golden_bundle(case.name), golden_samples(signal), FLOAT64)
    assert_rounded(case.mel(signal), LogMelReference(mel, rounding + FLOAT32 * mel.abs()))


@pytest.mark.parametrize("sizes", [1, 159, 160, 161, 1600, 10**6, "random"])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_any_requests_give_the_mel_of_the_whole(golden_bundle, front_end, sizes):
    case = FRONT_ENDS[front_end]
    checkpoint = golden_bundle(case.name)
    extractor = make_extractor(checkpoint, AttentionContext(*case.contexts[0]))
    for signal in ("short",) if sizes == 1 else SIGNALS:
        samples = golden_samples(signal)
        requests = cut(len(samples), random.Random(len(samples)) if sizes == "random" else sizes)
        found = mel_of(extractor, stream(extractor, samples.numpy(), requests))
        assert_rounded(found, reference(checkpoint, samples))


@pytest.mark.parametrize(("name", "context"), [(c.name, context) for c in golden_cases() for context in c.contexts])
def test_any_chunk_size_gives_the_mel_of_the_whole(golden_bundle, name, context):
    checkpoint = golden_bundle(name)
    extractor = make_extractor(checkpoint, AttentionContext(*context))
    samples = golden_samples("medium")
    found = mel_of(extractor, stream(extractor, samples.numpy(), cut(len(samples), random.Random(1))))
    assert_rounded(found, reference(checkpoint, samples))


def border_lengths(extractor: FeatureExtractor) -> list[int]:
    """Stream lengths one sample before, on and after every kind of border."""
    geometry = extractor.geometry
    real = [c * geometry.chunk_mel_frames - geometry.virtual_mel_frames for c in (1, 2)]
    borders = {0, geometry.hop_samples, 2 * geometry.hop_samples, geometry.frame_samples // 2}
    borders |= {frames * geometry.hop_samples for frames in real}  # the chunk's last frame exists
    borders |= {c * geometry.chunk_samples + geometry.window_samples - geometry.lead_samples for c in (0, 1)}  # emitted
    return sorted({max(0, border + nudge) for border in borders for nudge in (-1, 0, 1)})


@pytest.mark.parametrize("case", ["rnnt_hybrid", "tdt_unsorted"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_stream_may_end_on_any_border(golden_bundle, case, at_once):
    checkpoint = golden_bundle(case)
    extractor = make_extractor(checkpoint, AttentionContext(6, 1))
    for length in border_lengths(extractor):
        samples = golden_samples("medium")[:length]
        push(extractor, 0, NO_SAMPLES, is_first=True)
        replies = [] if at_once else [push(extractor, 0, samples.numpy())]
        replies.append(push(extractor, 0, samples.numpy() if at_once else NO_SAMPLES, is_last=True))
        assert_rounded(mel_of(extractor, replies), reference(checkpoint, samples))
        assert replies[-1].covered_samples == length


def test_all_chunks_are_whole_and_only_the_last_may_be_partly_valid(extractor):
    samples = golden_samples("medium").numpy()
    replies = stream(extractor, samples, cut(len(samples), random.Random(2)))
    size, bins = extractor.geometry.chunk_mel_frames, 80
    assert {tuple(reply.mel.shape[1:]) for reply in replies} == {(size, bins)}
    assert {reply.last_valid_mel_frames for reply in replies[:-1]} == {0, size}
    frames = len(samples) // 160 + extractor.geometry.virtual_mel_frames
    assert replies[-1].last_valid_mel_frames == (frames % size or size)


def test_covered_samples_grow_up_to_the_end(extractor):
    samples = golden_samples("medium").numpy()
    requests = list(cut(len(samples), random.Random(3)))
    replies = stream(extractor, samples, requests)
    covered = [reply.covered_samples for reply in replies]
    received = [request.stop for request in requests]
    assert covered == sorted(covered)
    assert covered[-1] == len(samples)
    assert all(c <= h for c, h in zip(covered, received, strict=False))
    frames = sum(len(reply.mel) for reply in replies[:-1]) * 16 - 7
    assert covered[-2] == frames * 160


def test_other_streams_of_any_age_change_nothing(golden_bundle, extractor):
    """Streams that start, pause and end at different times, several in each batch, are what each is alone."""
    chance = random.Random(4)
    signals = [golden_samples(signal).numpy() for signal in ("medium", "short", "long", "medium")]
    signals[3] = signals[3][5000:]
    requests = [list(cut(len(s), chance, most=9000)) for s in signals]
    replies: list[list[MelChunks]] = [[] for _ in signals]
    for slot in range(len(signals)):
        push(extractor, slot, NO_SAMPLES, is_first=True)
    while rows := [slot for slot, left in enumerate(requests) if left]:
        rows = chance.sample(rows, chance.randint(1, len(rows)))
        samples = [signals[slot][requests[slot].pop(0)] for slot in rows]
        for slot, reply in zip(rows, extract(extractor, rows, samples, [not requests[s] for s in rows]), strict=True):
            replies[slot].append(reply)
    for found, samples in zip(replies, signals, strict=True):
        expected = reference(golden_bundle("rnnt_hybrid"), torch.from_numpy(samples))
        assert_rounded(mel_of(extractor, found), expected)


def test_a_reopened_slot_is_a_fresh_one(extractor):
    samples = golden_samples("short").numpy()
    fresh = mel_of(extractor, stream(extractor, samples, [slice(None)], slot=1))
    push(extractor, 0, NO_SAMPLES, is_first=True)
    push(extractor, 0, np.full(7777, 1e4, np.float32))  # abandoned in the middle of a window
    assert torch.equal(mel_of(extractor, stream(extractor, samples, [slice(None)], slot=0)), fresh)


def test_samples_are_copied(extractor):
    """A caller may reuse its buffer."""
    samples = golden_samples("short").numpy()
    expected = mel_of(extractor, stream(extractor, samples, [slice(1000), slice(1000, None)]))
    buffer = samples.copy()
    push(extractor, 0, NO_SAMPLES, is_first=True)
    replies = [push(extractor, 0, buffer[:1000])]
    buffer[:1000] = 7.0
    replies += [push(extractor, 0, buffer[1000:]), push(extractor, 0, NO_SAMPLES, is_last=True)]
    assert torch.equal(mel_of(extractor, replies), expected)
