"""Models after fine-tuning in NeMo: labels that are characters or of several tokenizers, and adapters."""

from pathlib import Path

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

from nemo.collections.asr.models import ASRModel
from nemo.collections.common.parts.adapter_modules import LinearAdapterConfig

from benchmarks.nemo_models import build_ctc_model, build_model
from benchmarks.nemo_specs import FINE_TUNES, SPECS, float_signals
from penstock.errors import CheckpointError
from penstock.model.bundle import LABELS_FORMAT_VERSION, Checkpoint
from penstock.model.bundle_files import WEIGHTS_FILE, sha256_of
from penstock.model.card import card_languages
from penstock.model.nemo.importer import import_nemo
from penstock.model.tokenizer import Tokenizer
from penstock.recognizer import StreamingRecognizer
from tests.helpers.oracle.models import oracle_model, speech
from tests.helpers.recognition import recognize_alone

pytestmark = pytest.mark.oracle


def assert_nemos_texts(model: ASRModel, checkpoint: Checkpoint, decoder: str) -> None:
    """Tokens and texts of all recordings; of a text with an unknown piece, which each writes in its way, the tokens."""
    context = checkpoint.config.encoder.contexts[0]
    model.encoder.set_default_att_context_size(list(context))
    recognizer = StreamingRecognizer(checkpoint.directory, context, max_streams=1)
    tokenizer, compared = Tokenizer(checkpoint.tokenizer_path), 0
    unknown = {label for label in range(tokenizer.size) if "\u2047" in str(tokenizer.piece(label))}
    for samples in speech():
        (expected,) = model.transcribe([samples], return_hypotheses=True, verbose=False)
        result = recognize_alone(recognizer, samples, options={"decoder": decoder})
        tokens = [token.id for token in result.tokens]
        if decoder != "ctc":  # NeMo's CTC hypothesis has the label of each frame
            assert tokens == [int(label) for label in expected.y_sequence]
        if not unknown.intersection(tokens):
            assert result.text == expected.text.strip(" ")
            compared += bool(result.text)
    assert compared >= 3


@pytest.mark.parametrize("name", [spec.name for spec in FINE_TUNES])
def test_texts_of_a_transducer_and_its_ctc_head(name):
    """NeMo's CTC fails with several tokenizers: `tokens_to_text` wants a language."""
    one = oracle_model(name)
    assert f'"version": {LABELS_FORMAT_VERSION}' in (one.checkpoint.directory / "config.json").read_text()
    assert_nemos_texts(one.model, one.checkpoint, "greedy")
    if name == "tdt_languages":
        assert card_languages(one.checkpoint.directory) == ("en", "de")
        expected = tuple(one.model.tokenizer.text_to_ids("straße", "de"))
        assert Tokenizer(one.checkpoint.tokenizer_path).encodings("straße") == [expected]
    else:
        one.model.change_decoding_strategy(decoder_type="ctc", verbose=False)
        assert_nemos_texts(one.model, one.checkpoint, "ctc")
        one.model.change_decoding_strategy(decoder_type="rnnt", verbose=False)


def test_texts_of_characters_with_ctc_alone(tmp_path):
    model = build_ctc_model(FINE_TUNES[0], tmp_path, float_signals())
    model.preprocessor.featurizer.dither = 0.0
    model.save_to(str(tmp_path / "model.nemo"))
    assert_nemos_texts(model, import_nemo(tmp_path / "model.nemo", tmp_path / "bundle"), "ctc")


def test_adapters(tmp_path: Path):
    model = build_model(SPECS[0], tmp_path, float_signals())

    def weights(name: str) -> str:
        model.save_to(str(tmp_path / f"{name}.nemo"))
        return sha256_of(import_nemo(tmp_path / f"{name}.nemo", tmp_path / name).directory / WEIGHTS_FILE)

    before = weights("plain")
    model.replace_adapter_compatible_modules(verbose=False)
    assert weights("class") == before
    for name in ("mine", "encoder:other"):
        model.add_adapter(name, LinearAdapterConfig(in_features=SPECS[0].d_model, dim=8))
    with pytest.raises(CheckpointError, match=r"adapters\.mine, other: .*LinearAdapter.*set_enabled_adapters"):
        weights("enabled")
    model.set_enabled_adapters(enabled=False)
    assert weights("disabled") == before
