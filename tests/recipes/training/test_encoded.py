"""Frames of a frozen encoder are those of a stream; batches of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.encoder.precision import open_window_encoder
from penstock.errors import CheckpointError
from penstock.frontend.audio_file import read_audio
from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import WindowMel
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.recognizer import StreamingRecognizer
from recipes.training.encoded import EncodedUtterance, FrozenEncoder, draw_batches

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "models" / "an4-rnnt-hybrid"
CONTEXT = AttentionContext(70, 6)


def _recordings() -> list[np.ndarray]:
    paths = sorted((ROOT / "tests" / "data" / "an4" / "flac").glob("*.flac"))[:3]
    return [read_audio(path, 16_000) for path in paths]


@pytest.mark.nightly
def test_frames_equal_those_of_streams(monkeypatch):
    recordings = _recordings()
    recognizer = StreamingRecognizer(MODEL, CONTEXT)
    streamed: list[torch.Tensor] = []
    process = recognizer._encoder.process_tickets

    def kept(tickets, mels, **more):
        replies = process(tickets, mels, **more)
        streamed.append(torch.cat([reply.encoded for reply in replies]))
        return replies

    monkeypatch.setattr(recognizer._encoder, "process_tickets", kept)
    for samples in recordings:
        with recognizer.open_stream() as stream:
            stream.finish(samples)
    encoder = FrozenEncoder(Checkpoint(MODEL), CONTEXT)
    counted: list[int] = []
    found = encoder.encode([encoder.log_mel(samples) for samples in recordings], counted.append)
    assert sum(counted) == len(recordings)
    for one, other in zip(found, streamed, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        one.requires_grad_()  # not a tensor of the inference mode


def test_frames_of_an_offline_model_equal_those_of_files():
    recordings = _recordings()
    model = MODEL.parent / "an4-offline"
    mel = WindowMel(LogMel.of(Checkpoint(model)))
    files = open_window_encoder(Checkpoint(model)).encode([mel(torch.from_numpy(samples)) for samples in recordings])
    encoder = FrozenEncoder(Checkpoint(model), None)
    found = encoder.encode([encoder.log_mel(samples) for samples in recordings])
    for one, other in zip(found, files, strict=True):
        torch.testing.assert_close(one, other.float(), atol=1e-3, rtol=1e-3)
        one.requires_grad_()


def _utterance(number: int) -> EncodedUtterance:
    frames = torch.full((1 + number % 7, 2), float(number))
    return EncodedUtterance(frames, list(range(number % 3)), str(number))


def test_an_epoch_has_every_utterance_once_and_the_next_another_order():
    batches = draw_batches([_utterance(number) for number in range(50)], 8, np.random.default_rng(0))
    epochs = [[reference for _ in range(7) for reference in next(batches).references] for _ in range(2)]
    assert sorted(map(int, epochs[0])) == sorted(map(int, epochs[1])) == list(range(50))
    assert epochs[0] != epochs[1]


def test_a_model_with_language_prompts_is_rejected(golden_bundle):
    with pytest.raises(CheckpointError, match="has language prompts; accepted: a model without"):
        FrozenEncoder(golden_bundle("prompt_hybrid"), AttentionContext(56, 3))
