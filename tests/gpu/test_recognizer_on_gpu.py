"""The recognizer on a CUDA device: same words as on the CPU, and steps that never wait for the host."""

from difflib import SequenceMatcher

import numpy as np
import pytest
import torch

from penstock.encoder.encoder import StreamingEncoder
from penstock.encoder.precision import open_encoder
from penstock.frontend.audio_file import read_audio
from penstock.graphs.select import select_step_driver
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import StreamingRecognizer
from tests.helpers.golden import golden_utterances

pytestmark = pytest.mark.gpu

CONTEXTS = [(70, 13), (70, 6), (70, 1), (70, 0)]


def recognize(model, context, device: str, precision: str = "float32") -> list[tuple[list[int], list[int], str]]:
    """Tokens, timestamps and text of every golden utterance, all streams in one batch, 0.3 s at a time."""
    samples = [read_audio(utterance.path, 16000) for utterance in golden_utterances()]
    recognizer = StreamingRecognizer(model, context, max_streams=len(samples), device=device, precision=precision)
    tokens = [[] for _ in samples]
    texts = ["" for _ in samples]
    longest = max(map(len, samples))
    for start in range(0, longest, 4800):
        rows = [i for i, x in enumerate(samples) if start < len(x)]
        requests = [
            AudioRequest(i, samples[i][start : start + 4800], start == 0, start + 4800 >= len(samples[i])) for i in rows
        ]
        for i, result in zip(rows, recognizer.process(requests), strict=True):
            tokens[i] += result.tokens
            texts[i] = result.text
    return [([t.id for t in row], [t.timestamp for t in row], text) for row, text in zip(tokens, texts, strict=True)]


@pytest.mark.parametrize("context", CONTEXTS)
def test_words_equal_those_of_the_cpu(bundled_model, context):
    assert recognize(bundled_model, context, "cuda") == recognize(bundled_model, context, "cpu")


@pytest.mark.parametrize("context", CONTEXTS)
def test_words_in_the_default_precision_hardly_differ(bundled_model, context):
    found, expected = (
        " ".join(text for _, _, text in recognize(bundled_model, context, *where)).split()
        for where in (("cuda", "auto"), ("cpu",))
    )
    matching = SequenceMatcher(None, expected, found, autojunk=False).get_matching_blocks()
    assert sum(block.size for block in matching) >= 0.98 * max(len(expected), len(found)) - 1


@pytest.mark.parametrize("context", CONTEXTS)
def test_encoder_step_equals_the_cpu_and_never_synchronizes(bundled_model, context):
    checkpoint, context = Checkpoint(bundled_model), AttentionContext(*context)
    on_cpu, on_gpu = (StreamingEncoder(checkpoint, context, 5, device) for device in ("cpu", "cuda"))
    mel = torch.from_numpy(np.random.default_rng(0).normal(-8, 3, (9, 3, 8 * (context.right + 1), 80))).float()
    slots, valid = torch.tensor([4, 0, 2]), torch.full((3,), mel.shape[2])
    for chunk in mel:
        expected = on_cpu.step(slots, chunk, valid).frames
        inputs = [t.cuda() for t in (slots, chunk, valid)]
        torch.cuda.set_sync_debug_mode("error")
        try:
            frames = on_gpu.step(*inputs).frames
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.testing.assert_close(frames.cpu(), expected, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("precision", ["float32", "tf32", "float16", "bfloat16"])
def test_a_captured_encoder_is_the_eager_one(bundled_model, context, precision):
    """Both run the same batch sizes; a graph that differs in a bit would have been dropped when it was captured."""
    checkpoint, context = Checkpoint(bundled_model), AttentionContext(*context)
    eager, captured = (
        open_encoder(checkpoint, context, 70, "cuda", precision, select_step_driver(mode, "cuda"))
        for mode in ("no_graphs", "auto")
    )
    assert (eager._step.driver_name, captured._step.driver_name) == ("no_graphs", "no_while_loops")
    size = 8 * (context.right + 1)
    for rows in (1, 3, 64, 70):
        slots, valid = torch.randperm(70, device="cuda")[:rows], torch.full((rows,), size, device="cuda")
        mel = torch.randn(rows, size, 80, device="cuda")
        frames = [encoder.step(slots, mel, valid).frames for encoder in (eager, captured)]
        assert torch.equal(*frames)
