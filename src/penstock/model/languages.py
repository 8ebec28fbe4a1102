"""Languages of a checkpoint with prompts, and labels that are no text: language tags and end tokens. Untrusted data."""

import re
from dataclasses import replace

from penstock.errors import CheckpointError, naming
from penstock.model.config import ModelConfig, PromptConfig
from penstock.model.section import Section
from penstock.model.vocabulary import read_vocabulary

MAX_PROMPTS, MAX_LANGUAGES = 1 << 14, 1 << 14
LANGUAGE_TAG = re.compile(r"<[a-z]{2,3}-[A-Za-z]{2}>")
"""A tag as the models write it after a sentence, such as `<en-US>`."""
END_TOKEN = re.compile("<EO[UB]>")
"""Label of a model for the end of an utterance, and of a backchannel such as "uh-huh"."""
_AUTO, _UNKNOWN = "auto", "unk"
_SPACE_AND_TAG = re.compile(rf"\s*(?:{LANGUAGE_TAG.pattern}|{END_TOKEN.pattern})")


def read_languages(section: Section, key: str, prompts: int, hidden: int) -> PromptConfig:
    """The dictionary of prompts under `key`, whose default is `auto`, else the first language.

    YAML reads the key `no` as False where it is not quoted, so False is Norwegian. Raises CheckpointError.
    """
    value, supported = section.get(key), f"a mapping of languages to prompts from 0 to {prompts - 1}"
    if not isinstance(value, dict) or not 0 < len(value) <= MAX_LANGUAGES:
        section.reject(key, value, supported)
    languages = {"no" if name is False else name: prompt for name, prompt in value.items()}
    if len(languages) < len(value):
        section.reject(key, False, "languages that differ", "YAML reads `no` as False, and there is 'no', too")
    if _UNKNOWN in languages:
        section.reject(key, _UNKNOWN, "no such language", "its meaning as a default is not known")
    default = _AUTO if _AUTO in languages else next(iter(languages))
    with naming(section.path(key), CheckpointError):
        return PromptConfig(prompts, hidden, languages, default)


def with_labels(model: ModelConfig, tokenizer_model: bytes) -> ModelConfig:
    """The configuration with the labels of a `tokenizer.model` that are end tokens or, with prompts, language tags."""
    names = read_vocabulary(tokenizer_model).names
    tags, ends = (
        tuple(label for label, name in enumerate(names) if pattern.fullmatch(name))
        for pattern in (LANGUAGE_TAG, END_TOKEN)
    )
    return replace(model, prompt=model.prompt and replace(model.prompt, tags=tags), end_tokens=ends)


def without_tags(text: str) -> str:
    """The text without language tags and end tokens, each with the white space before it."""
    return _SPACE_AND_TAG.sub("", text).strip()
