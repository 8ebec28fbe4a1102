"""Speaker models equal Transformers' `nemotron3_diarization`: log-mel, probabilities and the cache after every step."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs the extra `oracle-hf`")

import torch
from transformers import Nemotron3DiarizationForAudioFrameClassification, Nemotron3DiarizationProcessor

from benchmarks.speaker_models import write_speakers
from penstock.frontend.audio_file import read_audio
from penstock.speakers.cache import SpeakerCache
from penstock.speakers.diarizer import Diarizer, StepRows, of_encoder_frames
from penstock.speakers.importer import import_speakers
from tests.helpers.golden import AN4

pytestmark = pytest.mark.oracle
SIZES = {"small cache": {"cache": 40}, "wide": {"width": 96, "layers": 3, "cache": 66}}


@pytest.fixture(scope="module", params=SIZES.values(), ids=SIZES.keys())
def pair(request, tmp_path_factory):
    """Diarizer, Transformers' model and processor."""
    folder = tmp_path_factory.mktemp("speakers")
    source = write_speakers(folder / "source", seed=1, **request.param)
    model, report = Nemotron3DiarizationForAudioFrameClassification.from_pretrained(source, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    processor = Nemotron3DiarizationProcessor.from_pretrained(source)
    saved = folder / "saved"  # what Transformers writes is read, too
    model.save_pretrained(saved)
    processor.save_pretrained(saved)
    return Diarizer(import_speakers(saved, folder / "bundle")), model.eval(), processor


@pytest.fixture(autouse=True)
def first_of_equals(monkeypatch):
    """Replaces `topk`, whose choice of equal scores is undefined: the first, as Penstock does."""

    def topk(scores: torch.Tensor, count: int, dim: int, sorted: bool) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = scores.sort(dim=dim, descending=True, stable=True)
        return values.narrow(dim, 0, count), indices.narrow(dim, 0, count)

    monkeypatch.setattr(torch, "topk", topk)


@pytest.fixture(scope="module")
def samples() -> torch.Tensor:
    """Ten minutes: the recordings, at several levels."""
    files = [Path(json.loads(line)["audio_filepath"]) for line in (AN4 / "manifest.jsonl").read_text().splitlines()]
    speech = np.concatenate([read_audio(AN4 / file, 16000) for file in files])
    repeated = np.resize(speech, 600 * 16000) * np.repeat(np.linspace(0.2, 1.0, 600, dtype=np.float32), 16000)
    return torch.from_numpy(repeated.astype(np.float32))


@torch.no_grad()
def test_recordings(pair, samples):
    """A few frames may differ for minutes: of two that are worth the same but for rounding each keeps another one."""
    diarizer, model, processor = pair
    inputs = processor(samples.numpy(), sampling_rate=16000)
    mel = inputs["input_features"][:, : int(inputs["attention_mask"].sum())]
    expected = model(mel).logits.sigmoid()[0]
    assert expected.std() > 0.05
    for found in (diarizer.of_mel([mel[0]]), diarizer.probabilities(samples)):
        difference = (found - expected).abs()
        assert (difference > 1e-4).float().mean() < 0.02
        assert difference.max() < 0.02
    for end in (1, 8, 271, 34 * 8, 40 * 8, 999):
        expected = model(mel[:, :end]).logits.sigmoid()[0]
        torch.testing.assert_close(diarizer.of_mel([mel[0, :end]]), expected, rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["low_latency", "very_low_latency", "ultra_low_latency"])
def test_live_steps(pair, samples, mode):
    """The cache is given the probabilities of Transformers' network, so that it has no rounding of its own."""
    diarizer, model, processor = pair
    network, size, slot = diarizer.network, diarizer.config.live_steps[mode], torch.tensor([1])
    mel = processor(samples.numpy(), sampling_rate=16000)["input_features"][0, : 60000 // 8 * 8]
    frames, cache, theirs = (
        network.embed(mel),
        SpeakerCache(network.config, network.config.live_queue, 2, network.silence),
        None,
    )
    logits = []
    model.classifier.register_forward_hook(lambda module, inputs, output: logits.append(output))
    for start in range(0, len(frames), size.chunk):
        is_last = start + size.chunk + size.right >= len(frames)
        end = len(frames) if is_last else start + size.chunk + size.right
        ahead = {} if is_last else {"num_lookahead_frames": size.right}
        theirs = model(mel[None, 8 * start : 8 * end], speaker_cache=theirs, **ahead).speaker_cache
        length = torch.tensor([end - start])
        kept = length - (0 if is_last else size.right)
        rows = StepRows(slot, frames[None, start:end], torch.zeros_like(length), kept, length)
        window, lengths = cache.window(rows)
        torch.testing.assert_close(network(window, lengths).sigmoid(), logits[-1].sigmoid(), rtol=0, atol=1e-4)
        cache.update(rows, window, of_encoder_frames(logits.pop().sigmoid(), 8))
        cached, queued = theirs.num_cache_frames, theirs.num_fifo_frames
        assert (int(cache.cached[1]), int(cache.queued[1])) == (cached, queued)
        assert torch.equal(cache.probabilities[1, :cached], theirs.probs[0, :cached])
        torch.testing.assert_close(cache.frames[1, :cached], theirs.embeds[0, :cached], rtol=0, atol=1e-4)
        torch.testing.assert_close(cache.queue[1, :queued], theirs.fifo[0, :queued], rtol=0, atol=1e-4)
        if is_last:
            break
    assert theirs.is_compressed
