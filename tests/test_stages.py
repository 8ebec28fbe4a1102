"""The stages on their own, with requests that only processes which run side by side can produce."""

import numpy as np
import pytest
import torch

from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext
from penstock.decoding.label_looping import LabelLooping
from penstock.encoder.encoder import StreamingEncoder
from penstock.errors import StreamError, StreamErrorKind
from penstock.features import MelChunks
from penstock.slot_ledger import SlotLedger
from penstock.stages.decoder import DecoderRequest, DecoderStage
from penstock.stages.encoder import EncoderRequest, EncoderStage
from penstock.stages.features import AudioRequest, FeatureReply, FeatureStage
from penstock.streams import Lease, StreamTable, slot_count
from tests.golden import golden_case
from tests.streaming import mel_chunks

CONTEXT = AttentionContext(6, 1)
SIGNAL = "long"  # its last chunk is not full


class Rig:
    """Both stages of one small model, with 3 slots and one ledger."""

    def __init__(self, checkpoint: Checkpoint):
        self.case = golden_case("rnnt_hybrid")
        self.config = checkpoint.config
        self.ledger = SlotLedger(3)
        self.encoder = EncoderStage(checkpoint, CONTEXT, 3, self.ledger)
        self.decoder = DecoderStage(checkpoint, 3, self.ledger)

    def mel(self, lease: Lease, chunks: slice, is_start: bool = False) -> EncoderRequest:
        """Some chunks of the signal."""
        all_chunks = mel_chunks(self.case.mel(SIGNAL), self.config.encoder, CONTEXT)
        some = all_chunks[chunks]
        mel = torch.stack([mel for mel, _ in some]) if some else torch.zeros(0, *all_chunks[0][0].shape)
        return EncoderRequest(lease, MelChunks(mel, some[-1][1] if some else 0, 0), is_start)

    def encoded(self, lease: Lease, frames: slice, is_start: bool = False, is_end: bool = False) -> DecoderRequest:
        """Some encoder frames of the signal."""
        encoded = self.case.encoded(CONTEXT, SIGNAL)
        return DecoderRequest(lease, encoded[frames], 0, is_start, is_end)


@pytest.fixture
def rig(golden_bundle) -> Rig:
    return Rig(golden_bundle("rnnt_hybrid"))


NOTHING = slice(0)
TURNS = [
    {0: slice(None), 1: slice(3), 2: NOTHING},
    {1: NOTHING, 2: slice(1)},
    {2: slice(1, 8), 1: slice(3, 4)},
    {1: slice(4, None), 2: slice(8, None)},
]


def test_requests_with_any_number_of_chunks_share_a_batch(rig):
    found: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for number, turn in enumerate(TURNS):
        requests = [rig.mel(Lease(slot, 1), chunks, is_start=number == 0) for slot, chunks in turn.items()]
        for slot, frames in zip(turn, rig.encoder.process(requests), strict=True):
            found[slot].append(frames)
    for parts in found.values():
        torch.testing.assert_close(torch.cat(parts), rig.case.encoded(CONTEXT, SIGNAL), atol=1e-4, rtol=0)


def test_a_stale_request_disturbs_nobody_in_either_stage(rig):
    lease, stale = Lease(1, 10), Lease(1, 9)
    expected = rig.case.encoded(CONTEXT, SIGNAL)
    first, refused = rig.encoder.process([rig.mel(lease, slice(3), True), rig.mel(stale, slice(1))])
    (second,) = rig.encoder.process([rig.mel(lease, slice(3, None))])
    assert isinstance(refused, StreamError)
    torch.testing.assert_close(torch.cat([first, second]), expected, atol=1e-4, rtol=0)
    golden = rig.case.greedy(CONTEXT, SIGNAL)
    one, refused = rig.decoder.process([rig.encoded(lease, slice(4), True), rig.encoded(stale, slice(4))])
    (two,) = rig.decoder.process([rig.encoded(lease, slice(4, None), is_end=True)])
    assert isinstance(refused, StreamError)
    assert [token.id for token in one.tokens + two.tokens] == golden.tokens


@pytest.mark.parametrize("stage", ["encoder", "decoder"])
def test_a_request_behind_a_failed_one_is_refused(rig, monkeypatch, stage):
    """It was on its way when the step failed; its stream has missed a chunk and must not go on."""
    owner, method = {"encoder": (StreamingEncoder, "step"), "decoder": (LabelLooping, "decode")}[stage]
    make = {"encoder": rig.mel, "decoder": rig.encoded}[stage]
    process = getattr(rig, stage).process
    lease = Lease(2, 7)
    process([make(lease, slice(2), True)])

    def fail(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, fail)
        (lost,) = process([make(lease, slice(2, 4))])
    (behind,) = process([make(lease, slice(4, 6))])
    assert str(lost) == f"the {stage} failed: out of memory"
    assert str(behind) == f"the {stage} no longer holds this stream; start it again"
    assert rig.ledger.failed_generation(2) == 7
    (answer,) = process([make(Lease(2, 8), slice(2), True)])
    assert not isinstance(answer, StreamError)


def test_every_request_is_settled_once(rig):
    """By the stage that answers it for good: the encoder if it refuses, else the decoder."""
    lease = Lease(0, 5)
    (frames,) = rig.encoder.process([rig.mel(lease, slice(2), True)])
    assert rig.ledger.settled_requests(*lease) == 0
    rig.decoder.process([DecoderRequest(lease, frames, 0, True, False)])
    assert rig.ledger.settled_requests(*lease) == 1
    rig.encoder.process([rig.mel(Lease(0, 5), slice(2), True)])
    assert rig.ledger.settled_requests(*lease) == 2
    rig.encoder.process([rig.mel(Lease(0, 4), slice(2))])
    assert rig.ledger.settled_requests(*lease) == 2, "of an earlier stream"


def test_a_slot_waits_for_the_requests_that_the_front_end_handed_on(golden_bundle):
    ledger = SlotLedger(slot_count(1))
    stage = FeatureStage(golden_bundle("rnnt_hybrid"), CONTEXT, StreamTable(1, ledger))

    def whole_stream(name: str) -> FeatureReply | StreamError:
        return stage.process([AudioRequest(name, np.zeros(0, np.float32), is_start=True, is_end=True)])[0]

    leases = [whole_stream(name).lease for name in "abc"]
    assert len({lease.slot for lease in leases}) == 3
    assert whole_stream("d").kind is StreamErrorKind.UNAVAILABLE
    ledger.settle("decoder", *leases[1])
    assert whole_stream("d").lease.slot == leases[1].slot


def test_nothing_to_process(rig):
    assert (rig.encoder.process([]), rig.decoder.process([])) == ([], [])


@pytest.mark.parametrize("slot", [-1, 3, 2**40])
def test_a_slot_that_does_not_exist_is_refused_in_either_stage(rig, slot):
    """As a ticket that the feature member has not sealed has none."""
    for stage, make in ((rig.encoder, rig.mel), (rig.decoder, rig.encoded)):
        good, refused = stage.process([make(Lease(0, 1), slice(2), True), make(Lease(slot, 5), slice(2), True)])
        assert not isinstance(good, StreamError)
        assert refused.kind is StreamErrorKind.INVALID_ARGUMENT
        assert "takes requests of the feature member only" in str(refused)
    assert [rig.ledger.settled_requests(slot, 1) for slot in range(3)] == [1, 0, 0]
    assert not any(rig.ledger.settled_requests(slot, 5) for slot in range(3))


@pytest.mark.parametrize("is_end", [False, True])
@pytest.mark.parametrize("old_is_first", [False, True])
def test_a_late_request_meets_the_slots_new_stream_in_one_batch(rig, is_end, old_is_first):
    """It waited longer than the idle limit, so the slot was given on."""
    old, new, alone = Lease(1, 5), Lease(1, 6), Lease(2, 7)
    for stage, make, rest in ((rig.encoder, rig.mel, slice(2, 4)), (rig.decoder, rig.encoded, slice(3, 6))):
        stage.process([make(old, slice(2), True)])
        late, start = make(old, rest, **({"is_end": is_end} if stage is rig.decoder else {})), make(new, slice(1), True)
        batch = [late, start] if old_is_first else [start, late]
        refused, going = stage.process(batch)[:: 1 if old_is_first else -1]
        assert refused.kind is StreamErrorKind.INTERNAL
        (wanted,) = stage.process([make(alone, slice(1), True)])
        (on,), (wanted_on,) = (stage.process([make(lease, slice(1, 6))]) for lease in (new, alone))
        for one, other in ((going, wanted), (on, wanted_on)):
            if stage is rig.encoder:
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
            else:
                assert (one.text, one.tokens) == (other.text, other.tokens)


def test_a_wrong_shape_costs_nobody_else_in_the_batch(rig):
    lease, expected = Lease(0, 1), rig.case.encoded(CONTEXT, SIGNAL)
    mel = MelChunks(torch.zeros(1, 3, 80), 3, 0)
    frames, refused = rig.encoder.process([rig.mel(lease, slice(None), True), EncoderRequest(Lease(1, 1), mel, True)])
    torch.testing.assert_close(frames, expected, atol=1e-4, rtol=0)
    assert str(refused) == f"chunks are [3, 80] each, expected {list(rig.mel(lease, slice(1)).chunks.mel.shape[1:])}"
    wrong = DecoderRequest(Lease(1, 1), torch.zeros(4, expected.shape[1] + 1), 0, True, False)
    result, refused = rig.decoder.process([rig.encoded(lease, slice(None), True, True), wrong])
    assert [token.id for token in result.tokens] == rig.case.greedy(CONTEXT, SIGNAL).tokens
    assert "expected [T, " in str(refused)


def test_a_segment_ends_in_every_stage_at_once(rig):
    """The next request begins afresh, though it came in without a start."""
    lease, golden = Lease(1, 4), rig.case.greedy(CONTEXT, SIGNAL)
    for number in range(3):
        request = rig.mel(lease, slice(None), is_start=number == 0)
        (frames,) = rig.encoder.process([EncoderRequest(lease, request.chunks, number == 0, ends_segment=True)])
        torch.testing.assert_close(frames, rig.case.encoded(CONTEXT, SIGNAL), atol=1e-4, rtol=0)
        work = DecoderRequest(lease, frames, 1600 * (number + 1), number == 0, False, ends_segment=True)
        (result,) = rig.decoder.process([work])
        assert (result.segment, result.is_final) == (number, True)
        assert [token.id for token in result.tokens] == golden.tokens
        assert [token.timestamp for token in result.tokens] == golden.timestamps
        assert result.audio_processed_s == pytest.approx(0.1 * (number + 1))
