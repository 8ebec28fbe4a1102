"""Offline models in Transformers format against Transformers: files, log-mel, encoder frames, labels and frames."""

import json

import pytest

pytest.importorskip("transformers", reason="needs the extra `oracle-hf`")

import torch

from penstock import OfflineRecognizer
from penstock.encoder.window.encoder import WindowEncoder
from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import WindowMel
from penstock.model.transformers.importer import import_transformers
from tests.helpers.oracle.offline_transformers import SPECS, parakeet

pytestmark = pytest.mark.oracle
MEL_TOLERANCE, TOLERANCE = 1e-5, 1e-4


@pytest.mark.parametrize("name", SPECS)
def test_log_mel_and_encoder(name):
    one = parakeet(name)
    tensors = one.checkpoint.tensors("features.")
    log_mel = LogMel(one.checkpoint.config.features, tensors["features.window"], tensors["features.mel_filterbank"])
    mel_of, mels = WindowMel(log_mel), [one.mel(samples) for samples in one.signals]
    for samples, mel in zip(one.signals, mels, strict=True):
        torch.testing.assert_close(mel_of(torch.from_numpy(samples)), mel, rtol=0, atol=MEL_TOLERANCE)
    for mel, found in zip(mels, WindowEncoder(one.checkpoint).encode(mels), strict=True):
        torch.testing.assert_close(found, one.encode_mel(mel), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", SPECS)
def test_labels_and_frames(name):
    one, count = parakeet(name), 0
    results = OfflineRecognizer(one.checkpoint.directory).transcribe(one.signals)
    for samples, result in zip(one.signals, results, strict=True):
        found = [token.id for token in result.tokens], [token.timestamp for token in result.tokens]
        assert found == one.decode(samples)
        count += len(result.tokens)
    assert count > 10


def test_the_front_end_may_be_where_older_releases_write_it(tmp_path):
    one = parakeet("tdt_v3")
    for path in one.directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    processor = json.loads((tmp_path / "processor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor["feature_extractor"]))
    (tmp_path / "processor_config.json").unlink()
    found = import_transformers(tmp_path, tmp_path / "bundle")
    assert found.config == one.checkpoint.config
