"""Export and import again give the bundle back; the oracle's environment has NeMo."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="extra `train`")

import torch

from penstock.model.bundle import Checkpoint
from penstock.model.nemo.importer import import_nemo
from recipes.an4.export_nemo import export_nemo

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("name", ["an4-rnnt-hybrid", "an4-tdt-hybrid", "an4-offline"])
def test_a_bundle_comes_back_from_nemo(name, bundled_model, tmp_path):
    bundle = Checkpoint(bundled_model.parent / name)
    export_nemo(bundle, tmp_path / "model.nemo")
    again = import_nemo(tmp_path / "model.nemo", tmp_path / "again")
    assert again.config == bundle.config
    assert again.tokenizer_path.read_bytes() == bundle.tokenizer_path.read_bytes()
    expected, found = bundle.tensors(), again.tensors()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[tensor], found[tensor]) for tensor in expected)
