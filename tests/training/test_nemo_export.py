"""Export and import again give the bundle back; the oracle's environment has NeMo."""

import shutil

import pytest

pytest.importorskip("nemo.collections.asr", reason="extra `train`")

import torch

from penstock.checkpoint import CONFIG_FILE, Checkpoint
from penstock.errors import CheckpointError
from penstock.nemo_import import import_nemo
from penstock.training.nemo_export import export_nemo

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("name", ["an4-rnnt-hybrid", "an4-tdt-hybrid"])
def test_a_bundle_comes_back_from_nemo(name, bundled_model, tmp_path):
    bundle = Checkpoint(bundled_model.parent / name)
    export_nemo(bundle, tmp_path / "model.nemo")
    again = import_nemo(tmp_path / "model.nemo", tmp_path / "again")
    assert again.config == bundle.config
    assert again.tokenizer_path.read_bytes() == bundle.tokenizer_path.read_bytes()
    ours, theirs = bundle.tensors(), again.tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[tensor], theirs[tensor]) for tensor in ours)


def test_another_architecture_is_refused(bundled_model, tmp_path):
    bundle = shutil.copytree(bundled_model, tmp_path / "other")
    config = bundle / CONFIG_FILE
    config.write_text(config.read_text().replace('"xscaling": true', '"xscaling": false'))
    with pytest.raises(CheckpointError, match="other: accepted: the architecture of the demonstration models"):
        export_nemo(Checkpoint(bundle), tmp_path / "model.nemo")
    assert not (tmp_path / "model.nemo").exists()
