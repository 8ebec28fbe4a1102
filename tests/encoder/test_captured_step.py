"""A captured encoder gives the frames of the eager one: padded buckets, slots used again, several contexts."""

import logging
import random

import pytest
import torch

from penstock.encoder import captured_step
from penstock.encoder.encoder import TORCH, StreamingEncoder
from penstock.graphs.no_while_loops import NoWhileLoopsDriver
from penstock.graphs.program import Driver, EagerDriver
from penstock.model.config import AttentionContext
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.stages import encoder as stage
from tests.encoder.test_encoder import assert_same, random_mel
from tests.helpers.fake_capture import FakeCapture, Recorded
from tests.helpers.golden import golden_case
from tests.helpers.random_models import random_checkpoint, random_encoder
from tests.helpers.streaming import NAN, encode_streams, mel_chunks

CASES = [("rnnt_hybrid", (6, 1)), ("tdt_gaps", (9, 2)), ("random", None)]
SLOTS = 7


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    monkeypatch.setattr(captured_step, "BUCKETS", (2, 4, 8, 16))


def open_encoders(checkpoint, context: AttentionContext, driver: Driver) -> tuple[StreamingEncoder, StreamingEncoder]:
    """The eager encoder and the captured one."""
    eager = StreamingEncoder(checkpoint, context, SLOTS, engine=TORCH)
    return eager, StreamingEncoder(checkpoint, context, SLOTS, driver=driver)


@pytest.fixture(params=CASES, ids=str)
def encoders(request, golden_bundle, tmp_path) -> tuple[StreamingEncoder, StreamingEncoder]:
    name, context = request.param
    checkpoint = random_checkpoint(tmp_path, 3, random_encoder(3)) if context is None else golden_bundle(name)
    context = AttentionContext(*context) if context else checkpoint.config.encoder.contexts[0]
    return open_encoders(checkpoint, context, NoWhileLoopsDriver(FakeCapture()))


def test_captured_is_eager(encoders, caplog):
    """Streams of all lengths in batches of any size, then others in the same slots; NaN where there is no audio."""
    eager, captured = encoders
    assert captured.max_batch == SLOTS
    config, context = eager.config, eager.context
    for seed in range(2):
        chance = random.Random(seed)
        mels = [
            random_mel(10 * seed + n, chance.randint(1, 40 * (context.right + 1)), config.mel_bins)
            for n in range(SLOTS)
        ]
        chunks = {slot: mel_chunks(mel, config, context, NAN) for slot, mel in enumerate(mels)}
        expected, found = (encode_streams(one, chunks, random.Random(seed)) for one in encoders)
        for slot, frames in expected.items():
            assert_same(found[slot], frames)
    assert not captured.state.chunks_seen[:SLOTS].equal(torch.zeros(SLOTS, dtype=torch.int64))
    captured.open(torch.arange(SLOTS))
    assert not captured.state.kv_pages[:, :SLOTS].any(), "a stream's slot is fresh"


def test_state_is_fresh_after_the_captures(encoders):
    state = encoders[1].state
    assert state.slots == SLOTS + 1
    for values in (state.chunks_seen, state.conv_tails, state.kv_pages, *state.subsampling_columns):
        assert not values.any()


def test_only_buckets_run(golden_bundle):
    """Libraries plan for a batch size when they first see it, also where the steps run eagerly."""
    _, captured = open_encoders(golden_bundle("rnnt_hybrid"), AttentionContext(6, 1), EagerDriver())
    sizes: set[int] = set()
    subsample = captured._step._network._subsampling.step

    def noting(mel, *rest):
        sizes.add(len(mel))
        return subsample(mel, *rest)

    captured._step._network._subsampling.step = noting
    for rows in range(1, SLOTS + 1):
        captured.step(torch.arange(rows), torch.zeros(rows, 16, 80), torch.full((rows,), 16))
    assert sizes == {2, 4, 8}


class OneBitOff(FakeCapture):
    """A replay that writes one wrong number."""

    def record(self, function) -> Recorded:
        recorded = super().record(function)
        frames = next(values for values in self.outputs if values.dim() == 3)
        recorded.items.append(lambda: frames[0, 0, 0].mul_(1 + 2**-20))
        return recorded

    def warm_up(self, program) -> None:
        super().warm_up(program)
        cells = [cell.cell_contents for cell in program.body[0].__closure__]
        self.outputs = next(values for values in cells if isinstance(values, captured_step.Encoded))


class Failing(FakeCapture):
    def record(self, function) -> Recorded:
        raise RuntimeError("operation not permitted")


@pytest.mark.parametrize(
    ("capture", "reason"), [(OneBitOff, "differs from the eager one"), (Failing, "operation not permitted")]
)
def test_a_graph_that_fails_or_differs_is_not_used(golden_bundle, caplog, capture, reason):
    with caplog.at_level(logging.WARNING):
        driver = NoWhileLoopsDriver(capture())
        eager, captured = open_encoders(golden_bundle("rnnt_hybrid"), AttentionContext(6, 1), driver)
    assert captured._step.driver_name == "no_graphs"
    assert "encoder: CUDA graphs `no_while_loops` failed" in caplog.text and reason in caplog.text
    chunks = {3: mel_chunks(golden_case("rnnt_hybrid").mel("long"), eager.config, eager.context)}
    expected, found = (encode_streams(one, chunks) for one in (eager, captured))
    assert_same(found[3], expected[3])


def test_a_stage_takes_steps_of_the_largest_bucket(golden_bundle, monkeypatch):
    """On a CUDA device, here a CPU with its driver."""
    checkpoint, context = golden_bundle("rnnt_hybrid"), AttentionContext(6, 1)
    monkeypatch.setattr(stage, "select_step_driver", lambda *_: EagerDriver())
    made = stage.EncoderStage(checkpoint, context, 100, SlotLedger(100))
    assert made._encoder.max_batch == 16
    made.warm_up(100)
