"""End tokens at import: which labels they are, what a bundle says of them, and that they are never text."""

import io
import json

import pytest
import sentencepiece
import yaml

from penstock import StreamingRecognizer
from penstock.cli import main
from penstock.errors import CheckpointError
from penstock.model.bundle import Checkpoint
from penstock.model.bundle_files import CONFIG_FILE
from penstock.model.nemo.importer import import_nemo
from penstock.model.tokenizer import Tokenizer
from penstock.model.transformers.importer import import_transformers
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING
from penstock.pipeline.results.results import StreamText
from penstock.pipeline.results.words import Decoded, Token
from penstock.pipeline.stream_decoders.fusion import StreamFusion
from penstock.scoring.ngram.estimation.text import TextTokenizer
from tests.helpers.nemo_files import CONFIG, nemo_members, tokenizer_member, write_nemo
from tests.helpers.transformers_files import WITH_PROMPTS, change_json, write_transformers

KINDS = ("user_defined_symbols", "control_symbols")
"""NeMo's script adds the tokens as control pieces, with a flag as user-defined ones."""


def tokenizer_model(kind: str, size: int = 48) -> bytes:
    """A SentencePiece model with <EOU> and <EOB>."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the stream of water runs down the pipe", "seven two nine erase rubout help"] * 20),
        model_writer=model, model_type="bpe", vocab_size=size, normalization_rule_name="identity",
        character_coverage=1.0, bos_id=-1, eos_id=-1, minloglevel=2, **{kind: ["<EOU>", "<EOB>"]},
    )  # fmt: skip
    return model.getvalue()


def nemo_file(directory, kind: str, case: str = "rnnt_hybrid", target: str = "EncDecHybridRNNTCTCBPEEOUModel"):
    """A golden .nemo with another tokenizer and another class."""
    members = nemo_members(case)
    document = yaml.safe_load(members[CONFIG])
    document["joint"]["vocabulary"] = None
    document["target"] = f"nemo.collections.asr.models.asr_eou_models.{target}"
    changed = {CONFIG: yaml.safe_dump(document).encode(), tokenizer_member(case): tokenizer_model(kind)}
    return write_nemo(directory / "eou.nemo", members | changed)


def end_tokens_of(checkpoint: Checkpoint) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(model_proto=checkpoint.tokenizer_path.read_bytes())
    return sorted(model.id_to_piece(label) for label in checkpoint.config.end_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_a_nemo_file(tmp_path, kind, capsys):
    assert main(["import", str(nemo_file(tmp_path, kind)), str(tmp_path / "bundle")]) == 0
    assert capsys.readouterr().out.rstrip().endswith(", end tokens")
    checkpoint = Checkpoint(tmp_path / "bundle")
    assert end_tokens_of(checkpoint) == ["<EOB>", "<EOU>"]
    assert checkpoint.config.textless_labels == checkpoint.config.end_tokens
    assert (checkpoint.config.head_name, checkpoint.source["class"]) == (
        "RNN-T + CTC",
        "EncDecHybridRNNTCTCBPEEOUModel",
    )
    document = json.loads((tmp_path / "bundle" / CONFIG_FILE).read_text())
    assert document["model"]["end_tokens"] == [1, 2]


def test_the_architecture_of_the_published_model(tmp_path):
    """Cache-aware, 128 mel bins, layer norm in the convolution, a transducer alone; TDT here, since a golden one is."""
    path = nemo_file(tmp_path, KINDS[1], "tdt_gaps", "EncDecRNNTBPEEOUModel")
    config = import_nemo(path, tmp_path / "bundle").config
    assert (config.features.mel_bins, config.encoder.has_conv_layer_norm, config.ctc) == (128, True, None)
    assert not config.encoder.is_offline and config.end_tokens == (1, 2)


def test_a_transformers_directory(tmp_path):
    source = write_transformers(tmp_path / "hf", WITH_PROMPTS)
    path = source / "tokenizer.json"
    path.write_text(path.read_text().replace("<en-US>", "<EOU>").replace("<de-DE>", "<EOB>"))
    config = import_transformers(source, tmp_path / "bundle").config
    assert end_tokens_of(Checkpoint(tmp_path / "bundle")) == ["<EOB>", "<EOU>"]
    assert config.tags and not set(config.tags) & set(config.end_tokens)
    assert config.textless_labels == (*config.tags, *config.end_tokens)


def test_other_bundles_have_none(golden_bundle):
    assert golden_bundle("rnnt_hybrid").config.end_tokens == ()


@pytest.mark.parametrize("wrong", [[48], [-1], ["1"], [True]])
def test_wrong_labels_in_a_bundle_are_rejected_by_name(tmp_path, wrong):
    directory = import_nemo(nemo_file(tmp_path, KINDS[0]), tmp_path / "bundle").directory
    change_json(directory, CONFIG_FILE, lambda document: document["model"].update(end_tokens=wrong))
    with pytest.raises(CheckpointError, match=r"config\.json: end_tokens: .*supported: labels from 0 to 47"):
        Checkpoint(directory)


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_in_no_text_and_no_scores(tmp_path, kind):
    checkpoint = import_nemo(nemo_file(tmp_path, kind), tmp_path / "bundle")
    tokenizer, (first, second) = Tokenizer(checkpoint.tokenizer_path), checkpoint.config.end_tokens
    words = tokenizer.encode("the stream")
    text = StreamText(tokenizer, checkpoint.config, has_end_tokens=False)
    tokens = [Token(label, frame, 0, -0.1) for frame, label in enumerate([*words, first, *words, second])]
    result = text.update(Decoded(tokens[:-1], tokens[-1:], []), 16_000, is_final=True)
    assert result.text == " ".join(word.text for word in result.words) == "the stream the stream"
    assert [token.id for token in result.tokens] == words * 2
    fusion = StreamFusion(checkpoint, tokenizer, DEFAULT_DECODING, 1).fusion
    assert fusion._is_neutral.nonzero().squeeze(1).tolist() == [first, second]
    corpus = tmp_path / "text"
    corpus.write_text("the stream <EOU>\nthe stream<EOB>\n")
    assert list(TextTokenizer(checkpoint.tokenizer_path, checkpoint.config.textless_labels).read([str(corpus)])) == [
        words,
        words,
    ]


def test_the_rule_is_on_where_the_model_has_them(tmp_path):
    checkpoint = import_nemo(nemo_file(tmp_path, KINDS[0]), tmp_path / "bundle")
    recognizer = StreamingRecognizer(checkpoint.directory, (6, 1))
    assert recognizer._features.parse_options({}).ends_at_tokens
    assert not recognizer._features.parse_options({"endpoint_tokens": "off"}).ends_at_tokens
