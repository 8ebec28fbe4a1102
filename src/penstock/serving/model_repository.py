"""Finds the directory of the Triton models, `model_repository/`, and copies it with a server's own configuration."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import SettingError
from penstock.serving.settings import ServeOptions

_BUNDLED = Path(__file__).resolve().parents[1] / "bundled" / "model_repository"
SPEAKERS, SPEAKER_ENSEMBLE = "speakers", "asr_batch_speakers"
"""The model that is loaded again by itself (`penstock.serving.speaker_restarts`), and the only one that needs it."""
_FIRST_MODEL, _ENSEMBLES = "features", ("asr", "asr_batch", SPEAKER_ENSEMBLE)
_GPU_DELAY_US = _POLL_DELAY_US = 5000
_DELAY = re.compile(r"(?<=max_queue_delay_microseconds:)\s*\d+")


def find_model_repository(named: str | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """`named`, else $PENSTOCK_MODEL_REPOSITORY, else the bundled one; SettingError if it has no `asr`."""
    option = ServeOptions.option("model_repository")
    given = option.read(environment, named)
    path = Path(given).expanduser().absolute() if given else _BUNDLED.resolve()
    if (path / "asr" / "config.pbtxt").is_file():
        return path
    raise SettingError(
        f"{given or path}: not a model repository of Penstock, asr/config.pbtxt is missing; name one with "
        f"{option.flag} or {option.variable}"
    )


def copy_models(
    repository: Path,
    directory: Path,
    delay_ms: int | None,
    information: Mapping[str, str],
    on_gpu: bool = False,
    has_speakers: bool = False,
) -> Path:
    """Creates `directory`: the models of `repository` with a batching delay, and `information` in the ensembles.

    The information becomes parameters, which clients read. The delay applies to the first model; by default it is what
    `repository` says, but at most a quarter of a chunk, after which the next chunks come. The later models wait for the
    rest of its batch, for as long as `repository` says but at most as long as the first. on_gpu: 5 ms instead, and no
    wait of the later models, because a step takes little longer for more streams. An offline model: 5 ms, because the
    encoder does nothing between two polls. has_speakers: with the speaker model and its ensemble.
    Configurations are copied; everything else is linked.
    """
    for name in (SPEAKERS, SPEAKER_ENSEMBLE) if has_speakers else ():
        if not (repository / name / "config.pbtxt").is_file():
            flag = ServeOptions.option("speakers").flag
            raise SettingError(f"{repository}: has no model {name}, which {flag} needs")
    for config in repository.glob("*/config.pbtxt"):
        model = directory / config.parent.name
        if model.name in (SPEAKERS, SPEAKER_ENSEMBLE) and not has_speakers:
            continue
        model.mkdir(parents=True)
        for entry in config.parent.iterdir():
            if entry != config:
                (model / entry.name).symlink_to(entry.absolute())
        text = config.read_text(encoding="utf-8")
        if delay_ms is not None and model.name == _FIRST_MODEL and not _DELAY.search(text):
            raise SettingError(f"{config}: has no max_queue_delay_microseconds, which --queue-delay-ms changes")
        default_us = _POLL_DELAY_US if information.get("windows") else 250 * float(information.get("chunk_ms", "inf"))
        most_us = default_us if delay_ms is None else 1000 * delay_ms
        text = _with_delay(text, delay_ms, model.name == _FIRST_MODEL, most_us, on_gpu)
        if model.name in _ENSEMBLES:
            for name, value in information.items():
                text += f"parameters {{ key: {_quoted(name)} value {{ string_value: {_quoted(value)} }} }}\n"
        (model / config.name).write_text(text, encoding="utf-8")
    return directory


def _quoted(text: str) -> str:
    """A string of protobuf's text format: bytes in octal where they are not printable ASCII."""
    return (
        '"'
        + "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in text.encode())
        + '"'
    )


def _with_delay(text: str, delay_ms: int | None, is_first: bool, most_us: float, on_gpu: bool) -> str:
    if delay_ms is not None and is_first:
        return _DELAY.sub(f" {1000 * delay_ms}", text)
    if on_gpu:
        most_us = min(most_us, _GPU_DELAY_US) if is_first else 0
    return _DELAY.sub(lambda match: f" {min(int(match[0]), most_us):.0f}", text)
