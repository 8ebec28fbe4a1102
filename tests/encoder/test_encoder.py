"""The streaming encoder is the offline one, whatever its context, the ages side by side, and what slots held before."""

import gc
import itertools
import random
import sys
from pathlib import Path
from signal import SIGTERM, raise_signal
from signal import signal as handle_signal

import pytest
import torch

from penstock.encoder import encoder as encoder_module
from penstock.encoder import modules
from penstock.encoder.encoder import OPENVINO, TORCH, StreamingEncoder, can_use_openvino, first_batches
from penstock.encoder.precision import open_encoder
from penstock.encoder.state import EncoderState
from penstock.encoder.torch_step import ConformerLayer
from penstock.graphs.program import EagerDriver
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from tests.helpers.fresh_process import in_fresh_process
from tests.helpers.golden import SIGNALS, golden_case, golden_cases
from tests.helpers.random_models import random_checkpoint, random_encoder, with_encoder
from tests.helpers.reference.encoder import EncoderReference
from tests.helpers.streaming import NAN, encode_streams, mel_chunks

TOLERANCE = 1e-4
"""Between two float32 paths. n roundings of either sign add up to about sqrt(n) u (Higham and Mary, 2019), here in sums
of n <= 150 products of values of order 3: 2.2e-6. They go through 5 of them in the subsampling and 12 in each of up to
3 layers, whose norms keep errors at the size they come in with: 9e-5."""
CASES = [(case.name, context) for case in golden_cases() for context in case.contexts]
SEEDS = range(8)
CONTEXTS = (AttentionContext(4, 1), AttentionContext(3, 0))
ENGINES = (TORCH, OPENVINO) if can_use_openvino() else (TORCH,)
"""PyTorch alone where another CPU is emulated."""
STREAMING_CASES = [(TORCH, *case) for case in CASES] + [
    (OPENVINO, case.name, case.contexts[0]) for case in golden_cases() if OPENVINO in ENGINES
]
"""A model in OpenVINO, which compiles for seconds, has one context: the others are other sizes of the same network."""


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def encode_alone(encoder: StreamingEncoder, mel: torch.Tensor, slot: int = 0, filling: float = NAN) -> torch.Tensor:
    return encode_streams(encoder, {slot: mel_chunks(mel, encoder.config, encoder.context, filling)})[slot]


def random_mel(seed: int, mel_frames: int, bins: int) -> torch.Tensor:
    """Log-mel that wanders in time and over the bins."""
    noise = torch.randn(mel_frames, bins, generator=torch.Generator().manual_seed(seed))
    return -6.0 + 3.0 * noise + 3.0 * noise.cumsum(0) / (1 + torch.arange(mel_frames)[:, None]) ** 0.5


@pytest.fixture(params=ENGINES)
def engine(request) -> str:
    return request.param


@pytest.fixture
def encoder(golden_bundle, engine) -> StreamingEncoder:
    """Chunks of 2 encoder frames, 6 frames of left context, 6 slots."""
    return StreamingEncoder(golden_bundle("rnnt_hybrid"), AttentionContext(6, 1), slots=6, engine=engine)


@pytest.fixture
def mels() -> list[torch.Tensor]:
    """Signals of different lengths."""
    case = golden_case("rnnt_hybrid")
    long, medium, short = case.mel("long"), case.mel("medium"), case.mel("short")
    return [long, medium, short, long[40:77], medium[9:], long[100:]]


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize(("name", "context"), CASES)
def test_the_plain_encoder_is_that_of_nemo(golden_bundle, name, context, signal):
    checkpoint, case = golden_bundle(name), golden_case(name)
    reference = EncoderReference(checkpoint.config.encoder, checkpoint.tensors("encoder."))
    assert_same(reference.encode(case.mel(signal), AttentionContext(*context)), case.encoded(context, signal))


@pytest.mark.parametrize(("engine", "name", "context"), STREAMING_CASES)
def test_streaming_gives_the_golden_output(golden_bundle, engine, name, context):
    case = golden_case(name)
    encoder = StreamingEncoder(golden_bundle(name), AttentionContext(*context), slots=3, engine=engine)
    chunks = [mel_chunks(case.mel(signal), encoder.config, encoder.context) for signal in SIGNALS]
    found = encode_streams(encoder, dict(enumerate(chunks)))
    for slot, signal in enumerate(SIGNALS):
        assert_same(found[slot], case.encoded(context, signal))


@pytest.mark.parametrize(
    ("engine", "seed"), [(TORCH, seed) for seed in SEEDS] + [(OPENVINO, seed) for seed in (6,) if OPENVINO in ENGINES]
)
def test_random_configurations(tmp_path, engine, seed):
    """Streams several times as long as the left context, of mixed ages."""
    checkpoint = random_checkpoint(tmp_path, seed, random_encoder(seed))
    config, chance = checkpoint.config.encoder, random.Random(seed)
    reference = EncoderReference(config, checkpoint.tensors("encoder."))
    for context in config.contexts[seed // 4 % 2 :: 2]:
        encoder = StreamingEncoder(checkpoint, context, slots=3, engine=engine)
        longest = config.subsampling_factor * 4 * (context.left + context.right + 1)
        mels = [
            random_mel(seed, n, config.mel_bins)
            for n in (longest, chance.randint(1, longest), chance.randint(1, longest))
        ]
        found = encode_streams(encoder, {s: mel_chunks(m, config, context) for s, m in enumerate(mels)}, chance)
        for slot, mel in enumerate(mels):
            assert_same(found[slot], reference.encode(mel, context))


@pytest.mark.parametrize(
    ("engine", "factor", "context"),
    [*itertools.product([TORCH], [4, 8], CONTEXTS), *itertools.product(ENGINES[1:], [8], CONTEXTS[:1])],
)
def test_a_stream_may_end_after_any_mel_frame(tmp_path, engine, factor, context):
    config = with_encoder(
        random_encoder(factor), subsampling_factor=factor, n_layers=1, mel_bins=16, contexts=(context,)
    )
    checkpoint = random_checkpoint(tmp_path, 0, config)
    reference = EncoderReference(config, checkpoint.tensors("encoder."))
    mels = [random_mel(n, n, 16) for n in range(3 * factor * context.chunk_encoder_frames + 2)]
    encoder = StreamingEncoder(checkpoint, context, slots=len(mels), engine=engine)
    found = encode_streams(encoder, {slot: mel_chunks(mel, config, context) for slot, mel in enumerate(mels)})
    for slot, mel in enumerate(mels):
        assert_same(found[slot], reference.encode(mel, context))


@pytest.mark.parametrize(
    ("engine", "batch"), [*itertools.product([TORCH], [1, 2, 7, 32]), *itertools.product(ENGINES[1:], [7])]
)
def test_a_batch_of_any_size_and_mix_of_ages_is_each_stream_alone(golden_bundle, engine, batch):
    case, context = golden_case("tdt_gaps"), AttentionContext(9, 2)
    encoder = StreamingEncoder(golden_bundle("tdt_gaps"), context, slots=batch, engine=engine)
    chance = random.Random(batch)
    whole = case.mel("long")
    mels = [whole[chance.randint(0, 300) :][: chance.randint(1, 200)] for _ in range(batch)]
    chunks = [mel_chunks(mel, encoder.config, context) for mel in mels]
    together = encode_streams(encoder, dict(enumerate(chunks)), chance)
    reference = EncoderReference(encoder.config, golden_bundle("tdt_gaps").tensors("encoder."))
    for slot, mel in enumerate(mels):
        assert_same(together[slot], reference.encode(mel, context))


@pytest.mark.parametrize("rows_of_steps", [(64, 1, 33, 64, 1, 2)])
def test_a_batch_that_grows_and_shrinks_from_step_to_step(golden_bundle, engine, rows_of_steps):
    case, context = golden_case("rnnt_hybrid"), AttentionContext(6, 1)
    encoder = StreamingEncoder(golden_bundle("rnnt_hybrid"), context, slots=64, engine=engine)
    chunks = mel_chunks(case.mel("long"), encoder.config, context)
    whole = encode_alone(encoder, case.mel("long"))
    encoder.open(torch.arange(64))
    seen, found = [0] * 64, [[] for _ in range(64)]
    for rows in rows_of_steps:
        slots = list(range(rows))
        mel, valid = zip(*(chunks[seen[slot]] for slot in slots), strict=True)
        frames = encoder.step(torch.tensor(slots), torch.stack(mel), torch.tensor(valid)).frames
        for slot in slots:
            seen[slot] += 1
            found[slot].append(frames[slot])
    for parts in found:
        assert_same(torch.cat(parts), whole[: len(parts) * context.chunk_encoder_frames])


@pytest.mark.parametrize("rows", [1, 4])
def test_convolving_a_few_rows_at_a_time_changes_nothing(golden_bundle, mels, monkeypatch, rows):
    """On the CPU PyTorch convolves large batches in parts."""
    encoder = StreamingEncoder(golden_bundle("rnnt_hybrid"), AttentionContext(6, 1), slots=6, engine=TORCH)
    chunks = {slot: mel_chunks(mel, encoder.config, encoder.context) for slot, mel in enumerate(mels)}
    expected = encode_streams(encoder, chunks, random.Random(0))
    monkeypatch.setattr(modules, "_tile_rows", lambda *_: rows)
    for slot, frames in encode_streams(encoder, chunks, random.Random(0)).items():
        assert_same(frames, expected[slot])


@pytest.mark.parametrize("spoilt_by", [NAN, 1e30])
def test_a_reopened_slot_is_a_fresh_one(encoder, mels, spoilt_by):
    fresh = encode_alone(encoder, mels[0], slot=1)
    spoilt = encode_alone(encoder, torch.full_like(mels[0], spoilt_by), slot=1)
    assert not torch.equal(spoilt, fresh)
    if encoder.engine == TORCH:  # OpenVINO's ReLU gives 0 for NaN
        assert not spoilt.isfinite().all()
    assert torch.equal(encode_alone(encoder, mels[0], slot=1), fresh)


def test_a_spoilt_stream_spoils_no_other_in_its_batch(encoder, mels):
    spoilt = torch.full_like(mels[0], NAN)
    found = encode_streams(encoder, {0: mel_chunks(spoilt, encoder.config, encoder.context),
                                     1: mel_chunks(mels[0], encoder.config, encoder.context)})  # fmt: skip
    assert_same(found[1], encode_alone(encoder, mels[0]))


def slot_state(state: EncoderState, slot: int) -> list[torch.Tensor]:
    """Copies of all that a slot holds, keys and values included."""
    by_slot = state.kv_pages.view(len(state.kv_pages), state.slots, -1)
    parts = [state.chunks_seen[slot], state.conv_tails[:, slot], by_slot[:, slot]]
    return [part.clone() for part in (*parts, *(column[slot] for column in state.subsampling_columns))]


def test_a_step_leaves_other_slots_alone(encoder, mels):
    streams = {slot: mel_chunks(mel, encoder.config, encoder.context) for slot, mel in enumerate(mels)}
    encode_streams(encoder, streams)
    others = {slot: slot_state(encoder.state, slot) for slot in (0, 2, 5)}
    encode_streams(encoder, {slot: streams[slot] for slot in (4, 1, 3)}, random.Random(0))
    for slot, before in others.items():
        assert all(map(torch.equal, slot_state(encoder.state, slot), before))


def test_output_forgets_what_left_the_context(encoder, mels):
    """A stream that started later gives the same frames as soon as its context is full."""
    chunks = mel_chunks(mels[0], encoder.config, encoder.context)
    later = mel_chunks(mels[0][16:], encoder.config, encoder.context)  # one chunk later
    assert len(chunks) == len(later) + 1
    found = encode_streams(encoder, {0: chunks, 1: later})
    reach = encoder.config.n_layers * (encoder.context.left + 1 + encoder.config.conv_kernel_size) + 2
    assert len(found[1]) > reach + 4
    assert_same(found[0][2:][reach:], found[1][reach:])
    assert (found[0][2:] - found[1])[:2].abs().max() > 10 * TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_engine_is_chosen_by_device_type_and_size(golden_bundle, bundled_model, monkeypatch, dtype):
    context, bundled = AttentionContext(70, 6), Checkpoint(bundled_model)
    assert StreamingEncoder(golden_bundle("rnnt_hybrid"), AttentionContext(6, 1), slots=1).engine == TORCH, "small"
    expected = OPENVINO if dtype == torch.float32 and OPENVINO in ENGINES else TORCH
    assert StreamingEncoder(bundled, context, slots=1, dtype=dtype).engine == expected
    monkeypatch.setitem(sys.modules, "openvino", None)  # its import fails
    assert StreamingEncoder(bundled, context, slots=1, dtype=dtype).engine == TORCH, "not installed"


@pytest.mark.parametrize(("dtype", "context", "has_kernels", "expected"), [
    (torch.float16, (70, 6), True, "fused"), (torch.bfloat16, (70, 0), True, "fused"),
    (torch.float16, (70, 6), False, TORCH), (torch.float32, (70, 6), True, TORCH),
])  # fmt: skip
def test_kernels_are_chosen_in_16_bit_on_a_gpu(bundled_model, monkeypatch, dtype, context, has_kernels, expected):
    monkeypatch.setattr(encoder_module, "available", lambda device: has_kernels)
    checkpoint, device = Checkpoint(bundled_model), torch.device("cuda")
    assert encoder_module._choose_engine(checkpoint, AttentionContext(*context), device, dtype) == expected


def test_kernels_that_fail_are_not_used(golden_bundle, monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise RuntimeError("out of resources")

    monkeypatch.setattr(encoder_module, "_choose_engine", lambda *_: "fused")
    monkeypatch.setattr(ConformerLayer, "step_fused", fail)
    checkpoint, context = golden_bundle("rnnt_hybrid"), AttentionContext(6, 1)
    encoder = StreamingEncoder(checkpoint, context, slots=1)
    assert encoder.engine == TORCH and "its kernels failed, PyTorch is used: RuntimeError: out of" in caplog.text
    mel = random_mel(0, 40, encoder.config.mel_bins)
    assert_same(encode_alone(encoder, mel), encode_alone(StreamingEncoder(checkpoint, context, 1, engine=TORCH), mel))


def test_a_setting_for_gpus_changes_nothing_on_a_cpu(bundled_model):
    checkpoint, context = Checkpoint(bundled_model), AttentionContext(70, 6)
    engines = {open_encoder(checkpoint, context, 1, kernels=kernels).engine for kernels in ("auto", "torch")}
    assert engines == {StreamingEncoder(checkpoint, context, slots=1).engine}
    assert StreamingEncoder(checkpoint, context, slots=1, driver=EagerDriver()).engine == TORCH


@pytest.mark.parametrize(
    ("engine", "largest", "batches"),
    [(TORCH, 3, [3]), (OPENVINO, 3, [3, 2, 1]), (OPENVINO, 64, [64, 32, 16, 8, 4, 2, 1])],
)
def test_the_batches_of_a_warm_up(engine, largest, batches):
    if engine in ENGINES:
        assert first_batches(largest, engine) == batches


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs OpenVINO")
@pytest.mark.parametrize("chunk_frames", [1, 7, 14])
def test_batches_hold_all_streams(chunk_frames):
    from penstock.encoder.openvino_step import BATCH_SIZES, plan_batches

    plans = plan_batches(chunk_frames)
    assert all(plans[size] == [size] for size in BATCH_SIZES)
    for streams, plan in enumerate(plans):
        assert sum(plan[:-1]) < streams <= sum(plan) or not plan
        assert plan == sorted(plan, reverse=True)


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs OpenVINO")
@pytest.mark.parametrize(
    ("onednn", "others", "is_used"),
    [("", "", True), ("AVX2", "AVX2", True), ("AVX2", "", False), ("", "AVX2", False), ("AVX512_CORE", "AVX2", False)],
)
def test_openvino_is_used_if_all_its_parts_take_the_same_instructions(monkeypatch, onednn, others, is_used):
    for name, value in (("ONEDNN_MAX_CPU_ISA", onednn), ("OV_CPU_MAX_ISA", others)):
        monkeypatch.delenv(name, raising=False)
        if value:
            monkeypatch.setenv(name, value)
    assert can_use_openvino() == is_used


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs OpenVINO")
@pytest.mark.parametrize("context", [(70, 6)])
def test_engines_agree_on_the_bundled_model(bundled_model, context):
    """Steps of one stream and of several, in turn, over the same state of each engine."""
    context = AttentionContext(*context)
    encoders = [StreamingEncoder(Checkpoint(bundled_model), context, slots=4, engine=engine) for engine in ENGINES]
    size, chance = encoders[0].config.subsampling_factor * context.chunk_encoder_frames, random.Random(0)
    for encoder in encoders:
        encoder.open(torch.arange(4))
    for step in range(16):
        slots = chance.sample(range(4), 1 + step % 4)
        mel = torch.stack([random_mel(100 * step + slot, size, 80) for slot in slots])
        valid = torch.tensor([chance.choice([size, size, chance.randint(0, size)]) for _ in slots])
        torch_, openvino = (encoder.step(torch.tensor(slots), mel, valid) for encoder in encoders)
        assert torch.equal(openvino.valid_encoder_frames, torch_.valid_encoder_frames)
        for found, expected, count in zip(openvino.frames, torch_.frames, torch_.valid_encoder_frames, strict=True):
            assert_same(found[:count], expected[:count])
    assert torch.equal(encoders[0].state.chunks_seen, encoders[1].state.chunks_seen)


def handled_after_freed_encoders(model: Path) -> bool:
    """Whether a signal reaches its handler after two encoders that have run are freed in the order of their making."""
    checkpoint, context = Checkpoint(model), AttentionContext(6, 1)
    encoders = [StreamingEncoder(checkpoint, context, slots=1, engine=OPENVINO) for _ in range(2)]
    for encoder in encoders:
        encode_alone(encoder, random_mel(0, 16, encoder.config.mel_bins))
    del encoder
    for _ in range(2):
        del encoders[0]
        gc.collect()
    handled: list[int] = []
    handle_signal(SIGTERM, lambda number, _: handled.append(number))
    raise_signal(SIGTERM)
    return handled == [SIGTERM]


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs OpenVINO")
def test_signals_are_handled_after_encoders_are_freed(golden_bundle):
    assert in_fresh_process(handled_after_freed_encoders, golden_bundle("rnnt_hybrid").directory)
