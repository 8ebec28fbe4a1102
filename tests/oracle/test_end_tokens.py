"""A random model with the architecture of parakeet_realtime_eou_120m-v1 against NeMo: frames, labels, text."""

import pytest

pytest.importorskip("nemo", reason="needs the extra `oracle`")

import random

import torch
from nemo.collections.asr.models import ASRModel

from benchmarks.nemo_specs import EOU_SPEC
from penstock.model.config import AttentionContext
from penstock.model.nemo.importer import import_nemo
from penstock.recognizer import StreamingRecognizer
from tests.helpers.oracle.models import OracleModel, oracle_model, speech
from tests.helpers.recognition import recognize_together

pytestmark = pytest.mark.oracle
CONTEXT = AttentionContext(*EOU_SPEC.contexts)
FREQUENT = [29, 30]
"""Labels of the model's signals."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> OracleModel:
    """The end tokens change places with frequent labels, so that the model writes them."""
    one, directory = oracle_model(EOU_SPEC.name), tmp_path_factory.mktemp("eou")
    path = directory / "eou.nemo"
    one.model.save_to(str(path))
    changed = ASRModel.restore_from(str(path), map_location="cpu").eval()
    changed.preprocessor.featurizer.dither = 0.0
    ends = changed.tokenizer.tokens_to_ids(["<EOU>", "<EOB>"])
    output = changed.joint.joint_net[-1]
    with torch.no_grad():
        for rows in (output.weight, output.bias, changed.decoder.prediction["embed"].weight):
            rows[[*ends, *FREQUENT]] = rows[[*FREQUENT, *ends]].clone()
    changed.save_to(str(path))
    return OracleModel(one.name, changed, import_nemo(path, directory / "bundle"), one.signals)


def test_the_bundle(model):
    config = model.checkpoint.config
    assert (config.features.mel_bins, config.encoder.has_conv_layer_norm, config.head_name) == (128, True, "RNN-T")
    assert config.encoder.contexts == (CONTEXT,)
    assert config.end_tokens == tuple(model.model.tokenizer.tokens_to_ids(["<EOU>", "<EOB>"]))


def test_labels_and_frames_are_nemos_and_the_text_lacks_end_tokens(model):
    signals = [*model.signals, *speech()]
    recognizer = StreamingRecognizer(model.checkpoint.directory, CONTEXT, max_streams=len(signals))
    options = [{"endpoint_tokens": "off"}] * len(signals)
    found = recognize_together(recognizer, signals, random.Random(0), options=options)
    count, ends = 0, set(model.checkpoint.config.end_tokens)
    for samples, one in zip(signals, found, strict=True):
        expected = model.decode(samples, CONTEXT)
        assert [token.id for token in one.tokens] == expected.tokens
        assert [token.timestamp for token in one.tokens] == expected.timestamps
        kept = [token for token in expected.tokens if token not in ends]
        assert one.text.split() == model.model.tokenizer.ids_to_text(kept).split()
        count += len(expected.tokens) - len(kept)
    assert count > 0, "the model writes end tokens"
