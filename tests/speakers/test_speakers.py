"""Speaker models: import, and which frames a speaker cache keeps. Streams beside each other: test_stage.py."""

import json
import math
import shutil

import pytest
import torch

from benchmarks.speaker_models import speaker_documents, write_speakers
from penstock.errors import CheckpointError
from penstock.speakers.bundle import SpeakerCheckpoint
from penstock.speakers.cache import SpeakerCache, StepRows
from penstock.speakers.diarizer import Diarizer
from penstock.speakers.importer import import_speakers
from penstock.speakers.network import SpeakerNetwork, _PaddedRows
from tests.helpers.transformers_files import change_json


@pytest.fixture(scope="module")
def network(speaker_bundle) -> SpeakerNetwork:
    return SpeakerNetwork(speaker_bundle.config, speaker_bundle.tensors())


def embedded(count: int, seed: int, width: int = 64) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def test_a_recording_has_a_row_for_each_mel_frame(speaker_bundle):
    diarizer = Diarizer(speaker_bundle)
    for samples in (0, 159, 160, 1599, 16000 * 7 + 81):
        found = diarizer.probabilities(torch.randn(samples) * 0.1)
        assert found.shape == (samples // 160, 8)
        assert bool(((found >= 0) & (found <= 1)).all())


@pytest.fixture
def cache(network) -> SpeakerCache:
    return SpeakerCache(network.config, network.config.live_queue, 1, network.silence)


def kept(cache: SpeakerCache, probabilities: torch.Tensor) -> list[int]:
    return cache.kept(probabilities[None], torch.tensor([len(probabilities)]))[0].tolist()


def test_of_equal_frames_the_newest_and_of_those_the_earliest_stay(cache):
    probabilities = torch.zeros(70, 8)
    probabilities[:, 0] = 0.9
    assert [frame for frame in kept(cache, probabilities) if frame < 70] == [*range(2), *range(40, 70)]


def test_silence_fills_what_speakers_leave_empty(cache):
    probabilities = torch.zeros(70, 8)
    assert kept(cache, probabilities) == [70] * 40
    probabilities[5, 3] = probabilities[50, 3] = probabilities[20, 6] = 0.9
    found = kept(cache, probabilities)
    assert [frame for frame in found if frame < 70] == [5, 50, 20]
    assert found.index(20) > found.index(50) > found.index(5)


def test_every_speaker_keeps_frames_beside_a_dominant_one(cache):
    probabilities = torch.zeros(70, 8)
    probabilities[:60, 0], probabilities[60:66, 1] = 0.99, 0.7
    found = kept(cache, probabilities)
    assert len({frame for frame in found if 60 <= frame < 66}) >= math.floor(4 * 0.75)


@pytest.mark.parametrize(
    ("file", "path", "value", "message"),
    [
        ("config.json", "audio_config.hidden_act", "relu", "hidden_act: 'relu'"),
        ("config.json", "audio_config.num_mel_bins", 64, "num_mel_bins: 64"),
        ("config.json", "audio_config.rope_parameters.rope_type", "linear", "rope_type: 'linear'"),
        ("config.json", "head_config.num_speakers", 4, "num_speakers: 8"),
        ("config.json", "streaming_config.speaker_cache_length", 15, "cache.frames: 15"),
        ("config.json", "chunk_right_context", 34, "look-ahead: 34"),
        ("config.json", "surprise", 1, "surprise: 1"),
        ("processor_config.json", "streaming_modes.low_latency", [0, 4], "chunk: 0"),
        ("processor_config.json", "streaming_mode", "none", "streaming_mode: 'none'"),
    ],
)
def test_a_configuration_that_would_change_results_is_rejected(tmp_path, file, path, value, message):
    source = write_speakers(tmp_path / "source")
    document = dict(zip(("config.json", "processor_config.json"), speaker_documents(), strict=True))[file]
    *parents, key = path.split(".")
    place = document
    for parent in parents:
        place = place[parent]
    place[key] = value
    (source / file).write_text(json.dumps(document))
    with pytest.raises(CheckpointError) as error:
        import_speakers(source, tmp_path / "bundle")
    assert message in str(error.value)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("n_layers", 10**9), ("d_model", "64"), ("speakers", 0), ("rope_theta", math.nan),
        ("rotary_share", 0.2), ("cache.frames", 10**6), ("cache.min_probability", 0), ("cache.weak_rate", 1e308),
        ("file_step", [9, 9, 0]), ("live_queue", [1, "2"]), ("live_steps", {}),
        ("live_steps.low_latency", [4, -1]), ("features.is_normalized", True),
    ],
)  # fmt: skip
def test_a_wrong_value_in_a_bundle_is_rejected(speaker_bundle, tmp_path, path, value):
    def change(document: dict) -> None:
        place, *keys = document["model"], *path.split(".")
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    bundle = shutil.copytree(speaker_bundle.directory, tmp_path / "bundle")
    change_json(bundle, "config.json", change)
    with pytest.raises(CheckpointError, match=r"config.json: [\w.-]+: .* is not supported"):
        SpeakerCheckpoint(bundle)


def test_rows_with_a_look_back_push_only_their_chunk(network):
    cache = SpeakerCache(network.config, network.config.live_queue, 1, network.silence)
    frames = embedded(12, seed=3)[None]
    rows = StepRows(torch.tensor([0]), frames, torch.tensor([2]), torch.tensor([7]), torch.tensor([12]))
    window, lengths = cache.window(rows)
    assert lengths.tolist() == [12]
    cache.update(rows, window, torch.zeros(1, 12, 8))
    assert cache.queued.tolist() == [7]
    assert torch.equal(cache.queue[0, :7], frames[0, 2:9])


def test_rows_with_padding_are_as_those_without(network, monkeypatch):
    """A GPU computes padding, too, so that shapes stay the same."""
    frames, lengths = embedded(3 * 70, seed=2).view(3, 70, -1), torch.tensor([70, 1, 33])
    found = network(frames, lengths)
    monkeypatch.setattr("penstock.speakers.network._PackedRows", lambda is_valid, lengths: _PaddedRows(is_valid))
    for row, padded_row, length in zip(found, network(frames, lengths), lengths, strict=True):
        torch.testing.assert_close(row[: 8 * length], padded_row[: 8 * length], rtol=0, atol=1e-5)
