"""Importing models with language prompts: the dictionary, the tensors and the tags, and what is rejected of them."""

import pytest
import torch
from safetensors.torch import load_file

from penstock.cli import main
from penstock.errors import CheckpointError
from penstock.model.config import PromptConfig
from penstock.model.languages import read_languages, without_tags
from penstock.model.nemo.importer import import_nemo
from penstock.model.section import Section
from tests.helpers import transformers_files as transformers
from tests.helpers.golden import GOLDEN, golden_tags
from tests.helpers.nemo_files import assert_rejected, changed_config, changed_state
from tests.helpers.transformers_files import WITH_PROMPTS, change_json, change_weights, write_transformers

LANGUAGES = {"en-US": 0, "en": 0, "de-DE": 3, "no": 4, "auto": 5}
PROMPTS, HIDDEN, WIDTH = 7, 48, 24


def read(dictionary: object, prompts: int = 8) -> PromptConfig:
    return read_languages(Section("defaults", {"languages": dictionary}), "languages", prompts, 4)


def test_a_nemo_file_with_prompts(tmp_path):
    checkpoint = import_nemo(GOLDEN / "prompt_hybrid.nemo", tmp_path / "bundle")
    assert checkpoint.config.prompt == PromptConfig(PROMPTS, HIDDEN, LANGUAGES, "auto", tuple(golden_tags()))
    assert list(checkpoint.config.prompt.languages) == list(LANGUAGES)
    state = transformers.shared_state(WITH_PROMPTS)
    weight, bias = state["prompt_kernel.0.weight"], state["prompt_kernel.0.bias"]
    tensors = checkpoint.tensors("prompt.")
    assert torch.equal(tensors["prompt.in.weight"], weight[:, :WIDTH])
    for prompt in range(PROMPTS):
        assert torch.equal(tensors["prompt.table"][prompt], weight[:, WIDTH + prompt] + bias)
    assert torch.equal(tensors["prompt.out.weight"], state["prompt_kernel.2.weight"])
    assert torch.equal(tensors["prompt.out.bias"], state["prompt_kernel.2.bias"])


def test_the_default_is_auto_else_the_first_language():
    assert read({"de-DE": 1, "auto": 0}).default == "auto"
    assert read({"de-DE": 1, "en-US": 0}).default == "de-DE"


def test_norwegian_without_quotes_in_yaml():
    assert read({False: 3, "en": 1}).languages == {"no": 3, "en": 1}


@pytest.mark.parametrize(
    ("dictionary", "match"),
    [
        (None, r"defaults\.languages: None is not supported; supported: a mapping of languages to prompts from 0 to 7"),
        ({}, "a mapping of languages"),
        ([["en", 0]], "a mapping of languages"),
        ({"en": 8}, r"languages\.en: 8 is not supported; supported: integers from 0 to 7"),
        ({"en": -1}, "integers from 0 to 7"),
        ({"en": True}, "integers from 0 to 7"),
        ({True: 1}, r"languages: \[True\] is not supported; supported: letters, digits"),
        ({"en,de": 1}, "letters, digits, - and _"),
        ({"x" * 65: 1}, "letters, digits, - and _"),
        ({False: 3, "no": 4}, "languages that differ"),
        ({"en": 0, "unk": 1}, r"'unk' is not supported; .* default is not known"),
    ],
)
def test_bad_dictionaries(dictionary, match):
    with pytest.raises(CheckpointError, match=match):
        read(dictionary)


def set_default(name: str, value: object):
    def change(document: dict) -> None:
        document["model_defaults"][name] = value

    return change


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("initialize_prompt_feature", False, r"model_defaults\.initialize_prompt_feature: False .*supported: True"),
        ("num_prompts", 4, r"model_defaults\.prompt_dictionary: languages\.\w+: [45] .*from 0 to 3"),
        ("num_prompts", None, r"prompt_kernel\.0\.weight is torch\.float32 \(48, 31\), expected floating \(48, 152\)"),
        ("enc_hidden", 12, r"model_defaults\.enc_hidden: 12 .*24, as encoder\.d_model"),
        ("prompt_dictionary", None, r"model_defaults\.prompt_dictionary: None"),
        ("initialize_lang_id_prompt", True, r"initialize_lang_id_prompt: True .*prompts of this kind"),
        ("language_dictionary", {"en": 0}, r"language_dictionary: .*prompts of this kind"),
    ],
)
def test_nemo_configurations_that_are_rejected(tmp_path, name, value, match):
    def change(document: dict) -> None:
        set_default(name, value)(document)
        if value is None:
            del document["model_defaults"][name]

    assert_rejected(changed_config(tmp_path / "x.nemo", change, WITH_PROMPTS), match)


def test_other_prompts_are_rejected_on_models_without_prompts(tmp_path):
    path = changed_config(tmp_path / "x.nemo", set_default("initialize_lang_id_prompt", True))
    assert_rejected(path, "initialize_lang_id_prompt: True")


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "2.weight", "2.bias"])
def test_every_nemo_tensor_is_needed_with_its_shape(tmp_path, name):
    name = f"prompt_kernel.{name}"
    path = changed_state(tmp_path / "a.nemo", lambda state: state.pop(name), WITH_PROMPTS)
    assert_rejected(path, rf"tensor {name} is missing, expected")
    change = {name: torch.zeros(3, 1, 2)}
    path = changed_state(tmp_path / "a.nemo", lambda state: state.update(change), WITH_PROMPTS)
    assert_rejected(path, rf"tensor {name} is .*\(3, 1, 2\), expected")


def test_newer_tensors_are_rejected_by_name(tmp_path):
    change = {"lang_id_prompt_kernel.0.bias": torch.zeros(3)}
    path = changed_state(tmp_path / "a.nemo", lambda state: state.update(change), WITH_PROMPTS)
    assert_rejected(path, r"tensor lang_id_prompt_kernel\.0\.bias is not expected")


@pytest.fixture
def source(tmp_path):
    return write_transformers(tmp_path / "hf", WITH_PROMPTS)


@pytest.mark.parametrize(
    ("file", "key", "value", "match"),
    [
        ("config.json", "num_prompts", None, "num_prompts is missing"),
        ("config.json", "num_prompts", 8, r"processor_config\.json: num_prompts: 7 .*must equal num_prompts in config"),
        ("config.json", "prompt_intermediate_size", None, "prompt_intermediate_size is missing"),
        ("config.json", "prompt_intermediate_size", 47, r"prompt_projector\.linear_1\.weight is .*\(47, 31\)"),
        ("config.json", "default_prompt_id", 7, "default_prompt_id: 7 .*from 0 to 6"),
        ("config.json", "model_type", "nemotron_asr_streaming", "num_prompts"),
        ("processor_config.json", "prompt_dictionary", None, "prompt_dictionary: None .*a mapping of languages"),
        ("processor_config.json", "prompt_dictionary", {"en": 7}, r"prompt_dictionary: languages\.en: 7"),
    ],
)
def test_transformers_configurations_that_are_rejected(source, file, key, value, match):
    def change(document: dict) -> None:
        document[key] = value
        if value is None:
            del document[key]

    change_json(source, file, change)
    transformers.assert_rejected(source, match)


@pytest.mark.parametrize("name", ["linear_1.weight", "linear_1.bias", "linear_2.weight", "linear_2.bias"])
def test_every_transformers_tensor_is_needed_with_its_shape(source, name):
    name = f"prompt_projector.{name}"
    assert name in load_file(source / "model.safetensors")
    change_weights(source, lambda state: state.pop(name))
    transformers.assert_rejected(source, rf"tensor {name} is missing, expected")
    change_weights(source, lambda state: state.update({name: torch.zeros(3, 1, 2)}))
    transformers.assert_rejected(source, rf"tensor {name} is .*\(3, 1, 2\), expected")


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("Hello there. <en-US> Guten Tag.<de-DE>", "Hello there. Guten Tag."),
        ("<yue-HK> hi", "hi"),
        ("a <EN-us> <en_US> <en-USA> < en-US>", "a <EN-us> <en_US> <en-USA> < en-US>"),
        ("", ""),
    ],
)
def test_text_without_tags(text, without):
    assert without_tags(text) == without


def test_the_import_names_the_number_of_languages(tmp_path, capsys):
    assert main(["import", str(GOLDEN / "prompt_hybrid.nemo"), str(tmp_path / "bundle")]) == 0
    assert capsys.readouterr().out.endswith("48 tokens, contexts [56,3] [56,0] [56,6] [56,13], 5 languages\n")
