"""The recognizer on a CUDA device: same words as on the CPU, and steps that never wait for the host."""

import numpy as np
import pytest
import torch

from penstock.encoder.encoder import StreamingEncoder
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import StreamingRecognizer
from tests.helpers.golden import golden_utterances

pytestmark = pytest.mark.gpu

CONTEXTS = [(70, 13), (70, 6), (70, 1), (70, 0)]


def recognize(model, context, device: str) -> list[tuple[list[int], list[int], str]]:
    """Tokens, timestamps and text of every golden utterance, all streams in one batch, 0.3 s at a time."""
    samples = [read_audio(utterance.path, 16000) for utterance in golden_utterances()]
    recognizer = StreamingRecognizer(model, context, max_streams=len(samples), device=device)
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


def test_encoder_step_can_be_captured_in_a_graph(bundled_model):
    context = AttentionContext(70, 6)
    eager, captured = (StreamingEncoder(Checkpoint(bundled_model), context, 4, "cuda") for _ in range(2))
    slots, valid = torch.tensor([3, 1], device="cuda"), torch.full((2,), 56, device="cuda")
    mel = torch.randn(6, 2, 56, 80, device="cuda")
    static = mel[0].clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # library workspaces are allocated outside the capture
        captured.step(slots, static, valid)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        output = captured.step(slots, static, valid).frames
    captured.open(slots)
    for chunk in mel:
        static.copy_(chunk)
        graph.replay()
        torch.testing.assert_close(output, eager.step(slots, chunk, valid).frames, atol=1e-4, rtol=1e-4)
