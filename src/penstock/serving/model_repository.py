"""Finds the directory of the Triton models, `model_repository/`, and copies it with another batching delay."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import SettingError
from penstock.serving.settings import MODEL_REPOSITORY, QUEUE_DELAY_MS

_BUNDLED = Path(__file__).resolve().parents[1] / "bundled" / "model_repository"
_FIRST_MODEL = "features"
_DELAY = re.compile(r"(?<=max_queue_delay_microseconds:)\s*\d+")


def find_model_repository(named: str | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """`named`, else $PENSTOCK_MODEL_REPOSITORY, else the bundled one; SettingError if it has no `asr`."""
    given = MODEL_REPOSITORY.read(environment, named)
    path = Path(given).expanduser().absolute() if given else _BUNDLED.resolve()
    if (path / "asr" / "config.pbtxt").is_file():
        return path
    raise SettingError(
        f"{given or path}: not a model repository of Penstock, asr/config.pbtxt is missing; name one with "
        f"{MODEL_REPOSITORY.flag} or {MODEL_REPOSITORY.variable}"
    )


def copy_with_queue_delay(repository: Path, directory: Path, delay_ms: int) -> Path:
    """Creates `directory`: the models of `repository` with a batching delay of `delay_ms`.

    The delay applies to the first model. The later models wait for the rest of its batch, for as long as `repository`
    says but at most `delay_ms`. Configurations are copied; everything else is linked.
    """
    for config in repository.glob("*/config.pbtxt"):
        model = directory / config.parent.name
        model.mkdir(parents=True)
        for entry in config.parent.iterdir():
            if entry != config:
                (model / entry.name).symlink_to(entry.absolute())
        original = config.read_text(encoding="utf-8")
        if model.name == _FIRST_MODEL and not _DELAY.search(original):
            raise SettingError(f"{config}: has no max_queue_delay_microseconds, which {QUEUE_DELAY_MS.flag} changes")
        text = _with_delay(original, 1000 * delay_ms, model.name == _FIRST_MODEL)
        (model / config.name).write_text(text, encoding="utf-8")
    return directory


def _with_delay(text: str, delay_us: int, is_first: bool) -> str:
    return _DELAY.sub(lambda found: f" {delay_us if is_first else min(int(found[0]), delay_us)}", text)
