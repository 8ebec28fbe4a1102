"""The stages on their own, with requests that only processes which run side by side can produce."""

from functools import partial

import numpy as np
import pytest
import torch

from penstock.decoding.greedy.search import LabelLooping
from penstock.encoder.encoder import StreamingEncoder
from penstock.errors import DeviceLostError, ErrorCode, StreamError, StreamErrorKind
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease, StreamTable, slot_count
from penstock.pipeline.slots.ticket import Ticket
from penstock.pipeline.stages import decoder as decoder_stage
from penstock.pipeline.stages import encoder as encoder_stage
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stages.encoder import EncoderStage
from penstock.pipeline.stages.features import FeatureStage
from penstock.runtime import check_device_works
from tests.helpers.golden import golden_case
from tests.helpers.stage_requests import DecoderRequest, EncoderRequest, admit, decode, encode
from tests.helpers.streaming import MelChunks, mel_chunks

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
STEPS = [
    {0: slice(None), 1: slice(3), 2: NOTHING},
    {1: NOTHING, 2: slice(1)},
    {2: slice(1, 8), 1: slice(3, 4)},
    {1: slice(4, None), 2: slice(8, None)},
]


def test_requests_with_any_number_of_chunks_share_a_batch(rig):
    found: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for number, step in enumerate(STEPS):
        requests = [rig.mel(Lease(slot, 1), chunks, is_start=number == 0) for slot, chunks in step.items()]
        for slot, frames in zip(step, encode(rig.encoder, requests), strict=True):
            found[slot].append(frames)
    for parts in found.values():
        torch.testing.assert_close(torch.cat(parts), rig.case.encoded(CONTEXT, SIGNAL), atol=1e-4, rtol=0)


@pytest.mark.parametrize("stage", ["encoder", "decoder"])
def test_a_request_behind_a_failed_one_is_rejected(rig, monkeypatch, stage):
    """The request was on its way when the step failed; its stream has missed a chunk and must not go on."""
    owner, method = {"encoder": (StreamingEncoder, "step"), "decoder": (LabelLooping, "decode")}[stage]
    make = {"encoder": rig.mel, "decoder": rig.encoded}[stage]
    process = partial({"encoder": encode, "decoder": decode}[stage], getattr(rig, stage))
    lease = Lease(2, 7)
    process([make(lease, slice(2), True)])

    def fail(*_, **__):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, fail)
        (lost,) = process([make(lease, slice(2, 4))])
    (behind,) = process([make(lease, slice(4, 6))])
    assert str(lost) == f"STREAM_LOST: the {stage} failed: out of memory"
    assert str(behind) == f"STREAM_LOST: the {stage} no longer has this stream's state; start the stream again"
    assert rig.ledger.failed_generations(2) == 7
    (answer,) = process([make(Lease(2, 8), slice(2), True)])
    assert not isinstance(answer, StreamError)


def test_the_encoder_warms_up_as_many_streams_as_it_has_slots(rig, monkeypatch):
    """The stage has 3 slots and `max_batch_size` 64."""
    ran, real = [], StreamingEncoder.step

    def step(encoder, slots, mel, valid):
        ran.append(len(slots))
        return real(encoder, slots, mel, valid)

    monkeypatch.setattr(StreamingEncoder, "step", step)
    rig.encoder.warm_up(64)
    assert ran == [3]


def test_the_encoder_may_reuse_the_memory_of_its_output(rig, monkeypatch):
    """A CUDA graph does so; requests of one chunk and of several are in the batch."""
    requests = [rig.mel(Lease(0, 5), slice(4), True), rig.mel(Lease(1, 5), slice(1), True)]
    expected = [frames.clone() for frames in encode(rig.encoder, requests)]
    real, outputs = StreamingEncoder.step, []

    def step(encoder, slots, mel, valid):
        chunk = real(encoder, slots, mel, valid)
        if not outputs:
            outputs.append(torch.empty_like(chunk.frames))
        outputs[0].fill_(float("nan"))
        return chunk._replace(frames=outputs[0][: len(chunk.frames)].copy_(chunk.frames))

    monkeypatch.setattr(StreamingEncoder, "step", step)
    again = [rig.mel(Lease(0, 6), slice(4), True), rig.mel(Lease(1, 6), slice(1), True)]
    for found, frames in zip(encode(rig.encoder, again), expected, strict=True):
        torch.testing.assert_close(found, frames, rtol=0.0, atol=1e-5)
    assert len(expected[0]) > len(expected[1]) > 0


def test_frames_of_a_batch_are_copied_to_the_host_at_once(rig, monkeypatch):
    """Requests with chunks and without, one of them for several streams; also where the step fails."""
    copied, requests = [], [rig.mel(Lease(slot, 3), slice(count), True) for slot, count in enumerate((2, 0, 1))]
    rows = np.array([request.row(0) for request in requests])
    tickets = [Ticket(rows[:1]), Ticket(rows[1:], is_batched=True)]
    mels = [requests[0].chunks.mel, requests[2].chunks.mel]
    expected = encode(
        rig.encoder, [rig.mel(Lease(slot, 2), slice(count), True) for slot, count in enumerate((2, 0, 1))]
    )
    monkeypatch.setattr(encoder_stage, "copy_to_host", lambda frames: copied.append(frames) or frames.clone())
    first, second = (reply.encoded for reply in rig.encoder.process_tickets(tickets, mels))
    assert len(copied) == 1
    torch.testing.assert_close(torch.cat([first, second]), torch.cat(expected), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("stage", ["encoder", "decoder"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_lost_device_is_not_the_error_of_a_stream(rig, monkeypatch, stage, is_lost):
    """After a device assertion every call fails; after a lack of memory the next batch may succeed."""

    def fail(*_, **__):
        raise RuntimeError("CUDA error: device-side assert triggered" if is_lost else "CUDA out of memory")

    module, owner, method, process = {
        "encoder": (encoder_stage, StreamingEncoder, "step", partial(encode, rig.encoder)),
        "decoder": (decoder_stage, LabelLooping, "decode", partial(decode, rig.decoder)),
    }[stage]
    lease = Lease(2, 7)
    request = {"encoder": rig.mel(lease, slice(2), True), "decoder": rig.encoded(lease, slice(2), True)}[stage]
    monkeypatch.setattr(module, "check_device_works", lambda device, error: check_device_works("cuda", error))
    monkeypatch.setattr(torch.cuda, "synchronize", fail if is_lost else lambda device: None)
    monkeypatch.setattr(owner, method, fail)
    if is_lost:
        with pytest.raises(DeviceLostError, match=r"CUDA_FAILED: cuda cannot .*: CUDA error: device-side"):
            process([request])
    else:
        assert process([request])[0].code is ErrorCode.STREAM_LOST


def test_every_request_is_settled_once(rig):
    """By the decoder, which also gets what the encoder has rejected."""
    lease = Lease(0, 5)
    (frames,) = encode(rig.encoder, [rig.mel(lease, slice(2), True)])
    assert rig.ledger.settled_requests(*lease) == 0
    decode(rig.decoder, [DecoderRequest(lease, frames, 0, True, False)])
    assert rig.ledger.settled_requests(*lease) == 1
    encode(rig.encoder, [rig.mel(Lease(0, 5), slice(2), True)])
    assert rig.ledger.settled_requests(*lease) == 1
    (rejected,) = decode(rig.decoder, [DecoderRequest(lease, frames, 0, False, False)])
    assert str(rejected) == "STREAM_LOST: an earlier stage lost this stream; start the stream again"
    assert rig.ledger.settled_requests(*lease) == 2
    decode(rig.decoder, [DecoderRequest(Lease(0, 4), frames, 0, False, False)])
    assert rig.ledger.settled_requests(*lease) == 2, "of an earlier stream"


def test_a_stream_restarts_behind_its_own_request_in_one_batch(golden_bundle):
    """The request before the start has not settled, so its slot is not that of the new stream."""
    ledger = SlotLedger(slot_count(2))
    stage = FeatureStage(golden_bundle("rnnt_hybrid"), CONTEXT, StreamTable(2, ledger))
    samples = np.zeros(1600, np.float32)
    (first,) = admit(stage, [AudioRequest("a", samples, is_start=True)])
    ledger.settle("decoder", *first.lease)
    again = AudioRequest("a", samples, is_start=True)
    old, new, on = admit(stage, [AudioRequest("a", samples), again, AudioRequest("a", samples)])
    assert (old.lease, old.number) == (first.lease, 1)
    assert new.lease.slot != old.lease.slot
    assert (new.number, on.lease, on.number) == (0, new.lease, 1)


@pytest.mark.parametrize("slot", [-2, 3, 2**40])
def test_a_slot_that_does_not_exist_is_rejected_in_either_stage(rig, slot):
    """A ticket without a valid signature has such a lease."""
    for process, make in ((partial(encode, rig.encoder), rig.mel), (partial(decode, rig.decoder), rig.encoded)):
        good, rejected = process([make(Lease(0, 1), slice(2), True), make(Lease(slot, 5), slice(2), True)])
        assert not isinstance(good, StreamError)
        assert rejected.kind is StreamErrorKind.INVALID_ARGUMENT
        assert "accepts only requests forwarded by the features stage" in str(rejected)
    assert [rig.ledger.settled_requests(slot, 1) for slot in range(3)] == [1, 0, 0]
    assert not any(rig.ledger.settled_requests(slot, 5) for slot in range(3))


@pytest.mark.parametrize("is_end", [False, True])
@pytest.mark.parametrize("old_is_first", [False, True])
def test_a_late_request_meets_the_slots_new_stream_in_one_batch(rig, is_end, old_is_first):
    """The late request waited longer than the idle limit. Behind the new stream's start it is rejected."""
    old, new, alone = Lease(1, 5), Lease(1, 6), Lease(2, 7)
    for name, make, rest in (("encoder", rig.mel, slice(2, 4)), ("decoder", rig.encoded, slice(3, 6))):
        process = partial({"encoder": encode, "decoder": decode}[name], getattr(rig, name))
        process([make(old, slice(2), True)])
        late, start = make(old, rest, **({"is_end": is_end} if name == "decoder" else {})), make(new, slice(1), True)
        batch = [late, start] if old_is_first else [start, late]
        rejected, going = process(batch)[:: 1 if old_is_first else -1]
        assert old_is_first or rejected.kind is StreamErrorKind.INTERNAL
        (wanted,) = process([make(alone, slice(1), True)])
        (on,), (wanted_on,) = (process([make(lease, slice(1, 6))]) for lease in (new, alone))
        for one, other in ((going, wanted), (on, wanted_on)):
            if name == "encoder":
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
            else:
                assert (one.text, one.tokens) == (other.text, other.tokens)


def test_a_wrong_shape_costs_no_other_stream_in_the_batch(rig):
    lease, expected = Lease(0, 1), rig.case.encoded(CONTEXT, SIGNAL)
    mel = MelChunks(torch.zeros(1, 3, 80), 3, 0)
    frames, rejected = encode(rig.encoder, [rig.mel(lease, slice(None), True), EncoderRequest(Lease(1, 1), mel, True)])
    torch.testing.assert_close(frames, expected, atol=1e-4, rtol=0)
    assert (
        rejected.message == f"chunks are [3, 80] each, expected {list(rig.mel(lease, slice(1)).chunks.mel.shape[1:])}"
    )
    wrong = DecoderRequest(Lease(1, 1), torch.zeros(4, expected.shape[1] + 1), 0, True, False)
    result, rejected = decode(rig.decoder, [rig.encoded(lease, slice(None), True, True), wrong])
    assert [token.id for token in result.tokens] == rig.case.greedy(CONTEXT, SIGNAL).tokens
    assert "expected [T, " in str(rejected)


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_a_request_after_the_last_costs_no_other_stream_in_the_batch(rig, is_one_batch):
    """A client that calls the decoder directly can send a stream's requests in two sequences, in any order."""
    used, other = Lease(0, 1), Lease(1, 1)
    starts = [rig.encoded(lease, slice(2), is_start=True) for lease in (used, other)]
    decode(rig.decoder, starts)
    last, late = rig.encoded(used, slice(2, 4), is_end=True), rig.encoded(used, slice(4, 6))
    if is_one_batch:
        final, rejected, unharmed = decode(rig.decoder, [last, late, rig.encoded(other, slice(2, 4))])
    else:
        (final,) = decode(rig.decoder, [last])
        rejected, unharmed = decode(rig.decoder, [late, rig.encoded(other, slice(2, 4))])
    assert isinstance(rejected, StreamError)
    assert final.is_final
    assert unharmed.tokens == final.tokens


def test_what_follows_a_rejected_start_in_its_batch_is_rejected_alone(rig, monkeypatch):
    full = StreamError(ErrorCode.PHRASE_MEMORY_FULL, "no memory")
    open_slot = rig.decoder._fusion.open

    def open_if_free(slot: int, options: ResolvedOptions) -> None:
        if slot == 0:
            raise full
        open_slot(slot, options)

    monkeypatch.setattr(rig.decoder._fusion, "open", open_if_free)
    batch = [
        rig.encoded(lease, frames, is_start, is_end)
        for frames, is_start, is_end in (
            (slice(2), True, False),
            (slice(2, 4), False, False),
            (slice(4, 6), False, True),
        )
        for lease in (Lease(0, 1), Lease(1, 1))
    ]
    answers = decode(rig.decoder, batch)
    rejected, going = answers[::2], answers[1::2]
    assert [error.code for error in rejected] == [ErrorCode.PHRASE_MEMORY_FULL, *[ErrorCode.STREAM_LOST] * 2]
    assert going[-1].is_final
    assert [rig.ledger.settled_requests(slot, 1) for slot in (0, 1)] == [3, 3]
    assert rig.ledger.failed_code(0) is ErrorCode.PHRASE_MEMORY_FULL
