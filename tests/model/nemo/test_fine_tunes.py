"""Checkpoints that fine-tuning makes: character models, one tokenizer per language, adapters."""

import numpy as np
import pytest
import torch

from penstock.errors import CheckpointError, GraphError
from penstock.model.bundle import LABELS_FORMAT_VERSION
from penstock.model.bundle_files import read_document
from penstock.model.nemo.importer import import_nemo
from penstock.model.nemo.weights import without_adapters
from penstock.model.tokenizer import Tokenizer
from penstock.model.vocabulary import write_models
from penstock.recognizer import StreamingRecognizer
from penstock.scoring.boosting.phrases import merge_phrases, tokenize_phrases
from penstock.scoring.ngram.estimation.text import TextTokenizer
from penstock.scoring.ngram.io import read_token_names
from penstock.scoring.wfst.building.lexicon import build_lexicon
from tests.helpers.nemo_files import assert_rejected, changed_config, tokenizer_member
from tests.helpers.recognition import recognize_alone

CHARACTERS = [*" abcdefghijklmnopqrstuvwxyz'ß0123456789äöüéèñç.,"]
"""48, as many as the golden model has pieces."""


def of_characters(document: dict, labels=CHARACTERS, ctc_labels=CHARACTERS) -> None:
    document["target"] = "nemo.collections.asr.models.hybrid_rnnt_ctc_models.EncDecHybridRNNTCTCModel"
    del document["tokenizer"]
    document["labels"] = ["stale"]
    document["joint"]["vocabulary"] = labels and [*labels]
    document["aux_ctc"]["decoder"]["vocabulary"] = [*ctc_labels]


def test_a_model_of_characters(tmp_path, golden_bundle):
    bundle = import_nemo(changed_config(tmp_path / "model.nemo", of_characters), tmp_path / "bundle")
    with pytest.raises(CheckpointError, match=f"version {LABELS_FORMAT_VERSION}, supported: 1, 2, 3"):
        read_document(bundle.directory, "penstock-bundle", (1, 2, 3))  # as earlier versions do
    tokenizer = Tokenizer(bundle.tokenizer_path)
    assert tokenizer.decode(tokenizer.encode("seven  o'clock ")) == "seven o'clock"
    assert tokenizer.encode("a?") == [1, -1] and tokenizer.alphabet == frozenset(CHARACTERS) - {" "}
    found = tokenize_phrases(merge_phrases([("SEVEN", 1.0), ("東京", 1.0)]), tokenizer, ignores_unknown=True)
    assert [tokenizer.decode(list(phrase.tokens)) for phrase in found] == ["seven"]
    (tmp_path / "text").write_text("six? seven\n")
    text = TextTokenizer(bundle.tokenizer_path)
    assert list(text.read([str(tmp_path / "text")])) == [tokenizer.encode("six seven")]
    assert (text.unknown_tokens, read_token_names(bundle.tokenizer_path).pieces[0]) == (1, "\u2581")
    with pytest.raises(GraphError, match="labels are characters; accepted"):
        build_lexicon({"six": [()]}, ["six"], tokenizer)
    samples = np.random.default_rng(0).standard_normal(40_000, np.float32) * 0.1
    ours, pieces = (
        recognize_alone(StreamingRecognizer(each.directory, max_streams=1), samples)
        for each in (bundle, golden_bundle("rnnt_hybrid"))  # the same weights
    )
    assert ours.outcome[0] == pieces.outcome[0] != []
    assert ours.text == tokenizer.decode([token.id for token in ours.tokens])


def test_labels_of_two_languages(tmp_path, golden_bundle):
    data, path = golden_bundle("rnnt_hybrid").tokenizer_path.read_bytes(), tmp_path / "tokenizer.model"
    path.write_bytes(write_models({"en": data, "de": data}))
    tokenizer, names = Tokenizer(path), read_token_names(path).pieces
    one = tokenizer.encode("seven")
    assert tokenizer.encodings("seven") == [tuple(one), tuple(48 + label for label in one)]
    assert tokenizer.decode([48 + label for label in one]) == "seven" and tokenizer.unknown in tokenizer.encode("日")
    assert len(set(names)) == 96 and names[48] == f"de:{names[0].removeprefix('en:')}"
    boosted = tokenize_phrases(merge_phrases([("seven", 1.0)]), tokenizer)
    assert [phrase.boost * len(phrase.tokens) for phrase in boosted] == [len(one)] * 2
    with pytest.raises(CheckpointError, match=r"a tokenizer per language \(en, de\)"):
        TextTokenizer(path)
    with pytest.raises(GraphError, match="one tokenizer per language; accepted"):
        build_lexicon({"six": [()]}, ["six"], tokenizer)


def test_wrong_labels_are_rejected(tmp_path):
    def reject(change, match):
        assert_rejected(changed_config(tmp_path / "model.nemo", change), match)

    for labels in (CHARACTERS[1:], [*CHARACTERS[1:], 7], [*CHARACTERS[1:], ""], None):
        reject(lambda document, each=labels: of_characters(document, each), r"joint\.vocabulary: .* 48 characters")
    reject(lambda document: of_characters(document, CHARACTERS[::-1]), "joint and CTC head have the same labels")
    langs = {name: {"type": "bpe", "model_path": f"nemo:{tokenizer_member()}"} for name in ("en", "de")}
    reject(lambda document: document.update(tokenizer={"type": "agg", "langs": langs}), "has 96 pieces, expected 48")
    for content in (b"{", b'{"characters": []}', b'{"characters": [1]}', b'{"languages": {"en": "?"}}'):
        (tmp_path / "tokenizer.model").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"tokenizer\.model: not a"):
            Tokenizer(tmp_path / "tokenizer.model")


def test_a_disabled_adapter_is_left_out(caplog):
    places = ("encoder.layers.0.adapter_layer.{}.module.1.weight", "joint.adapter_layer.{}.weight")
    state = {place.format(name): torch.zeros(1) for place in places for name in ("mine", "mine2")}
    assert list(without_adapters(state, ("mine",))) == [place.format("mine2") for place in places]
    assert "adapters mine: disabled, left out of the bundle" in caplog.text
