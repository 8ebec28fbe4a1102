"""The files of a checkpoint in Transformers format, and their JSON as untrusted data."""

import hashlib
import json
from pathlib import Path
from typing import Any, NoReturn

from penstock.errors import CheckpointError
from penstock.model.bundle_files import sha256_of

CONFIG, PROCESSOR, PREPROCESSOR = "config.json", "processor_config.json", "preprocessor_config.json"
TOKENIZER, WEIGHTS, WEIGHTS_INDEX = "tokenizer.json", "model.safetensors", "model.safetensors.index.json"
PATTERNS = (CONFIG, PROCESSOR, PREPROCESSOR, TOKENIZER, WEIGHTS, WEIGHTS_INDEX, "model-*.safetensors")
"""The files of a repository that belong to the checkpoint."""
PROMPT_MODEL_TYPE = "nemotron3_5_asr"
CTC_MODEL_TYPE, RNNT_MODEL_TYPE, TDT_MODEL_TYPE = "parakeet_ctc", "parakeet_rnnt", "parakeet_tdt"
SPEAKER_MODEL_TYPE = "nemotron3_diarization"
OFFLINE_MODEL_TYPES = (CTC_MODEL_TYPE, RNNT_MODEL_TYPE, TDT_MODEL_TYPE)
MODEL_TYPES = ("nemotron_asr_streaming", PROMPT_MODEL_TYPE, *OFFLINE_MODEL_TYPES)
MAX_JSON_BYTES = 1 << 20
MAX_TOKENIZER_BYTES = 64 << 20
MAX_JSON_DEPTH = 40


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Returns the object in `path`; every CheckpointError names the file."""
    name = path.name
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointError(f"{name}: cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise CheckpointError(f"{name}: has more than {max_bytes} bytes")
    too_deep = f"{name}: nested deeper than {MAX_JSON_DEPTH}"
    try:
        document = json.loads(data, object_pairs_hook=_without_duplicates, parse_constant=_reject_constant)
    except RecursionError as error:
        raise CheckpointError(too_deep) from error
    except ValueError as error:
        raise CheckpointError(f"{name}: not JSON: {error}") from error
    if _depth_exceeds(document, MAX_JSON_DEPTH):
        raise CheckpointError(too_deep)
    if not isinstance(document, dict):
        raise CheckpointError(f"{name}: contains a {type(document).__name__}; accepted: an object")
    return document


def model_type(directory: Path) -> str | None:
    """The model type in config.json of `directory`; None if it is not in Transformers format."""
    if not (directory / CONFIG).is_file():
        return None
    value = read_json(directory / CONFIG).get("model_type")
    return value if isinstance(value, str) else None


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files: one, or the shards that the index names."""
    if (directory / WEIGHTS).is_file() or not (directory / WEIGHTS_INDEX).is_file():
        return [_present(directory, WEIGHTS)]
    places = read_json(directory / WEIGHTS_INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{WEIGHTS_INDEX}: weight_map is not an object with names of shards")
    for shard in places.values():
        is_plain = isinstance(shard, str) and shard.endswith(".safetensors") and not set(shard) & set("/\\:\0")
        if not is_plain:
            raise CheckpointError(f"{WEIGHTS_INDEX}: {shard!r} is not supported; supported: names of files beside it")
    return [_present(directory, shard) for shard in sorted(set(places.values()))]


def content_sha256(directory: Path) -> str:
    """SHA-256 over the names and SHA-256 of all files of the checkpoint."""
    digest = hashlib.sha256()
    optional = (PROCESSOR, PREPROCESSOR, TOKENIZER, WEIGHTS_INDEX)
    paths = [_present(directory, CONFIG), *(directory / name for name in optional), *weight_files(directory)]
    for path in paths:
        if path.is_file():
            digest.update(f"{sha256_of(path)}  {path.name}\n".encode())
    return digest.hexdigest()


def _present(directory: Path, name: str) -> Path:
    if not (directory / name).is_file():
        raise CheckpointError(f"{name} is missing")
    return directory / name


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, value in pairs:
        if name in document:
            raise ValueError(f"key {name!r} occurs twice")
        document[name] = value
    return document


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _depth_exceeds(value: object, limit: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(children) and (limit == 0 or any(_depth_exceeds(child, limit - 1) for child in children))
