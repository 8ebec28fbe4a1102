"""The streaming encoder against NeMo's encoder on the whole utterance, both fed with NeMo's log-mel."""

import random

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import torch

from benchmarks.nemo_specs import EOU_SPEC
from penstock.encoder.encoder import StreamingEncoder
from penstock.model.config import AttentionContext
from tests.helpers.oracle.models import MODEL_NAMES, OracleModel, long_speech, oracle_model, speech

pytestmark = pytest.mark.oracle
TOLERANCE = 1e-4  # derived in tests/encoder/test_encoder.py


class ChunkedMel:
    """One utterance's log-mel [N, F], chunk by chunk; frames that hold no audio are noise."""

    def __init__(self, mel: torch.Tensor, factor: int, context: AttentionContext, generator: torch.Generator):
        whole, virtual = factor * context.chunk_encoder_frames, factor - 1
        count = -(-(virtual + len(mel)) // whole)
        rows = 9 * torch.randn(count * whole, mel.shape[1], generator=generator)
        rows[virtual : virtual + len(mel)] = mel
        self.chunks = rows.view(count, whole, -1)
        self.valid_mel_frames = [whole] * (count - 1) + [virtual + len(mel) - (count - 1) * whole]


def stream_encoder(
    one: OracleModel, context: AttentionContext, mels: list[torch.Tensor], at_once: int, seed: int
) -> list[torch.Tensor]:
    """Encoder output [T, D] of each utterance, with at most `at_once` of mixed ages in a batch, in reused slots."""
    noise, generator = torch.Generator().manual_seed(seed), random.Random(seed)
    factor = one.checkpoint.config.encoder.subsampling_factor
    sources = [ChunkedMel(mel, factor, context, noise) for mel in mels]
    encoder = StreamingEncoder(one.checkpoint, context, slots=at_once)
    waiting, free = list(range(len(mels))), list(range(at_once))
    live: dict[int, int] = {}  # utterance -> slot
    found: list[list[torch.Tensor]] = [[] for _ in mels]
    while waiting or live:
        while waiting and free and (not live or generator.random() < 0.6):
            slot = free.pop(generator.randrange(len(free)))
            encoder.open(torch.tensor([slot]))
            live[waiting.pop(0)] = slot
        batch = generator.sample(list(live), generator.randint(1, len(live)))
        step = [len(found[i]) for i in batch]
        encoded = encoder.step(
            torch.tensor([live[i] for i in batch]),
            torch.stack([sources[i].chunks[n] for i, n in zip(batch, step, strict=True)]),
            torch.tensor([sources[i].valid_mel_frames[n] for i, n in zip(batch, step, strict=True)]),
        )
        for i, frames, valid in zip(batch, encoded.frames, encoded.valid_encoder_frames.tolist(), strict=True):
            found[i].append(frames[:valid])
            if len(found[i]) == len(sources[i].chunks):
                free.append(live.pop(i))
    return [torch.cat(parts) for parts in found]


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("at_once", [1, 32])
@pytest.mark.parametrize("name", [*MODEL_NAMES, EOU_SPEC.name])
def test_streams_of_mixed_ages(name: str, at_once: int):
    one, generator = oracle_model(name), random.Random(at_once)
    whole = [one.mel(samples) for samples in (*one.signals, *speech()[:3])]
    for context in one.contexts:
        picked = generator.choices(whole, k=max(3, at_once))
        mels = [mel[: generator.randint(1, len(mel))] for mel in picked]
        for mel, found in zip(mels, stream_encoder(one, context, mels, at_once, seed=context.right), strict=True):
            assert_same(found, one.encode_mel(mel, context))


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_long_speech(name: str):
    """Far beyond the left context, so that every page is overwritten several times."""
    one = oracle_model(name)
    mel = one.mel(long_speech(15.0))
    for context in one.contexts:
        (found,) = stream_encoder(one, context, [mel], at_once=1, seed=0)
        assert_same(found, one.encode_mel(mel, context))
