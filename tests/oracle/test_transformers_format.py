"""Files of the tests, written without Transformers: it can load them, and they have its format."""

import io
import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the extra `oracle-hf`")

import sentencepiece
import torch
from safetensors.torch import load_file
from transformers import (
    Nemotron3_5AsrForRNNT,
    Nemotron3_5AsrProcessor,
    NemotronAsrStreamingForRNNT,
    NemotronAsrStreamingProcessor,
)

from penstock.model.tokenizer import Tokenizer
from penstock.model.transformers.importer import import_transformers
from tests.helpers.nemo_files import nemo_members, tokenizer_member
from tests.helpers.oracle.transformers_models import SPECS, WITH_PROMPTS, processor_of, transformers_model
from tests.helpers.transformers_files import PLAIN, tokenizer_document, transformers_state, write_transformers
from tests.helpers.transformers_files import WITH_PROMPTS as PROMPT_CASE

pytestmark = pytest.mark.oracle
FILES = ("config.json", "processor_config.json")


def keys(value: object) -> object:
    return {key: keys(inner) for key, inner in value.items()} if isinstance(value, dict) else None


@pytest.mark.parametrize(
    ("case", "model_class", "processor_class"),
    [
        (PLAIN, NemotronAsrStreamingForRNNT, NemotronAsrStreamingProcessor),
        (PROMPT_CASE, Nemotron3_5AsrForRNNT, Nemotron3_5AsrProcessor),
    ],
)
def test_transformers_loads_and_saves_the_written_checkpoint_unchanged(tmp_path, case, model_class, processor_class):
    written = write_transformers(tmp_path / "written", case)
    model, report = model_class.from_pretrained(written, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    saved = tmp_path / "saved"
    model.save_pretrained(saved)
    processor_class.from_pretrained(written).save_pretrained(saved)
    state = load_file(saved / "model.safetensors")
    expected = transformers_state(case)
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], tensor.float()) for name, tensor in expected.items())
    for name in FILES:
        ours, theirs = (json.loads((folder / name).read_text()) for folder in (written, saved))
        if name == "config.json":
            ours["transformers_version"] = theirs["transformers_version"]
            ours["encoder_config"]["dtype"] = theirs["encoder_config"]["dtype"]  # that of the loaded weights
        assert ours == theirs, name
    again = import_transformers(saved, tmp_path / "a")
    assert again.config == import_transformers(written, tmp_path / "b").config


@pytest.mark.parametrize("spec", [*SPECS, WITH_PROMPTS], ids=lambda spec: spec.name)
def test_the_written_files_have_the_keys_of_saved_ones(spec, tmp_path):
    written = write_transformers(tmp_path / "written", PLAIN if spec.languages is None else PROMPT_CASE)
    saved = transformers_model(spec.name).directory
    for name in FILES:
        ours, theirs = (json.loads((folder / name).read_text()) for folder in (written, saved))
        assert keys(ours) == keys(theirs), name


def sentencepiece_models() -> dict[str, bytes]:
    writer = io.BytesIO()
    text = ["the café of Zürich costs 3 €", "x² ① costs ½", "one two three", "state of the art"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=writer, model_type="bpe", vocab_size=60, minloglevel=2,
        user_defined_symbols=["<en-US>"], control_symbols=["<ctl>"],
    )  # fmt: skip
    golden = {case: nemo_members(case)[tokenizer_member(case)] for case in ("rnnt_hybrid", "rnnt_bytes")}
    return golden | {"nfkc": writer.getvalue()}


MODELS = sentencepiece_models()


@pytest.mark.parametrize("name", MODELS)
def test_tokenizer_json_is_what_transformers_writes(name: str, tmp_path: Path):
    model = MODELS[name]
    processor_of(SPECS[0], model).tokenizer.save_pretrained(tmp_path)
    theirs, ours = json.loads((tmp_path / "tokenizer.json").read_text()), tokenizer_document(model)
    assert theirs["added_tokens"] == ours["added_tokens"]
    for key in ("normalizer", "pre_tokenizer", "decoder", "model"):
        assert theirs[key] == ours[key], key


def test_text_is_that_of_transformers():
    """But for blanks around it, byte pieces and unknown characters, which Transformers prints as they are."""
    one = transformers_model(SPECS[0].name)
    ours, generator = Tokenizer(one.checkpoint.tokenizer_path), torch.Generator().manual_seed(0)
    for length in range(200):
        tokens = torch.randint(1, ours.size, (length % 20,), generator=generator).tolist()
        assert ours.decode(tokens) == one.processor.decode(tokens).strip()
        text = ours.decode(tokens)
        assert ours.encode(text) == one.processor.tokenizer.encode(text, add_special_tokens=False)
