"""tokenizer.json to SentencePiece: the same text for every id sequence, and the same ids for text where it was BPE."""

import copy
import io
import json
import random
from pathlib import Path

import pytest
import sentencepiece

from benchmarks.sentencepiece_proto import parse
from penstock.errors import CheckpointError
from penstock.model.transformers.tokenizer import convert_tokenizer
from tests.helpers.nemo_files import nemo_members, tokenizer_member
from tests.helpers.transformers_files import tokenizer_document

BUNDLED = Path(__file__).parents[3] / "models" / "an4-rnnt-hybrid" / "tokenizer.model"
TEXT = [
    "seven eight nine",
    "the café of Zürich costs 3 €",
    "x² ① costs ½",
    "one two three four",
    "state of the art",
] * 20


def trained(**options: object) -> bytes:
    """A SentencePiece model with SentencePiece's own normalization (nmt_nfkc)."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=writer, minloglevel=2, bos_id=-1, eos_id=-1, **options
    )
    return writer.getvalue()


def models() -> dict[str, bytes]:
    return {
        "golden": nemo_members()[tokenizer_member()],
        "bytes": nemo_members("rnnt_bytes")[tokenizer_member("rnnt_bytes")],
        "bundled": BUNDLED.read_bytes(),
        "nfkc": trained(model_type="bpe", vocab_size=60),
        "nfkc bytes": trained(model_type="bpe", vocab_size=330, byte_fallback=True),
        "symbols": trained(
            model_type="bpe", vocab_size=60, user_defined_symbols=["<en-US>"], control_symbols=["<pad>"]
        ),
        "unigram": trained(model_type="unigram", vocab_size=50, hard_vocab_limit=False),
    }


MODELS = models()


def converted(directory: Path, document: dict, size: int) -> sentencepiece.SentencePieceProcessor:
    (directory / "tokenizer.json").write_text(json.dumps(document))
    return sentencepiece.SentencePieceProcessor(model_proto=convert_tokenizer(directory, size))


@pytest.mark.parametrize("name", MODELS)
def test_text_and_ids_are_those_of_the_original(tmp_path, name):
    theirs = sentencepiece.SentencePieceProcessor(model_proto=MODELS[name])
    size = theirs.get_piece_size()
    ours = converted(tmp_path, tokenizer_document(MODELS[name]), size)
    assert [ours.id_to_piece(i) for i in range(size)] == [theirs.id_to_piece(i) for i in range(size)]
    for kind in ("is_control", "is_unknown", "is_byte"):
        assert [getattr(ours, kind)(i) for i in range(size)] == [getattr(theirs, kind)(i) for i in range(size)]
    draw = random.Random(name)
    for _ in range(2000):
        tokens = draw.choices(range(size), k=draw.randint(0, 20))
        assert ours.decode(tokens) == theirs.decode(tokens)
    characters = sorted({*"".join(TEXT), *"  \t.Q"})
    lines = ["".join(draw.choices(characters, k=draw.randint(0, 30))) for _ in range(3000)]
    lines += [line.replace(" ", "  ") + " " for line in TEXT] + ["<en-US> one", "a<pad>b"]
    # A unigram model becomes merges in tokenizer.json, which divide some lines in other ways.
    if name != "unigram":
        assert [ours.encode(line) for line in lines] == [theirs.encode(line) for line in lines]


def test_later_ids_are_no_labels(tmp_path):
    document = tokenizer_document(MODELS["golden"])
    assert [token["content"] for token in document["added_tokens"]] == ["<unk>", "<pad>", "<blank>"]
    assert converted(tmp_path, document, 48).get_piece_size() == 48


def test_merges_of_older_releases_are_strings(tmp_path):
    document = tokenizer_document(MODELS["golden"])
    expected = converted(tmp_path, document, 48).serialized_model_proto()
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    assert converted(tmp_path, document, 48).serialized_model_proto() == expected


def test_scores_are_the_ranks_of_merges(tmp_path):
    document = tokenizer_document(MODELS["golden"])
    pieces = parse(converted(tmp_path, document, 48).serialized_model_proto()).pieces
    scores = {piece.text: piece.score for piece in pieces}
    assert scores["".join(document["model"]["merges"][3])] == -3
    assert max(scores[piece] for piece in "etorn") < -len(document["model"]["merges"]) + 1


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ("model.type", "Unigram", r"model\.type: 'Unigram' is not supported; supported: 'BPE'"),
        ("model.dropout", 0.1, r"model\.dropout"),
        ("model.end_of_word_suffix", "</w>", r"model\.end_of_word_suffix"),
        ("model.unk_token", "<oov>", r"model\.unk_token: '<oov>'"),
        ("model.unk_token", None, r"model\.unk_token: None"),
        ("model.vocab", ["a"], r"model\.vocab"),
        ("model.vocab.e", 3, r"model\.vocab: no piece has id"),
        ("model.vocab.e", "3", r"model\.vocab"),
        ("model.vocab.new", 48, r"model\.vocab: has 49 pieces, expected 48"),
        ("model.merges", None, r"model\.merges"),
        ("model.merges", [["a"]], r"model\.merges: \['a'\]"),
        ("model.merges", [["q", "q"]], r"model\.merges: .*not in model\.vocab"),
        ("normalizer", {"type": "Lowercase"}, r"normalizer: .*supported: Precompiled"),
        (
            "normalizer",
            {"type": "Precompiled", "precompiled_charsmap": "*"},
            r"normalizer\.precompiled_charsmap: is not base64",
        ),
        ("pre_tokenizer.prepend_scheme", "never", r"pre_tokenizer\.prepend_scheme: 'never'"),
        ("decoder", {"type": "ByteLevel"}, r"decoder\.type: 'ByteLevel'"),
        ("added_tokens", [{"id": 3, "content": "x"}], r"added_tokens: 'x' has id 3"),
        ("added_tokens", [3], r"added_tokens"),
    ],
)
def test_another_tokenizer_is_rejected(tmp_path, path, value, match):
    document = copy.deepcopy(tokenizer_document(MODELS["golden"]))
    *sections, key = path.split(".")
    place = document
    for section in sections:
        place = place[section]
    place[key] = value
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json: {match}"):
        converted(tmp_path, document, 48)


def test_fewer_pieces_than_labels(tmp_path):
    with pytest.raises(CheckpointError, match=r"model\.vocab: has 48 pieces, expected 60"):
        converted(tmp_path, tokenizer_document(MODELS["golden"]), 60)
