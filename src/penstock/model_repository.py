"""Where the Triton models are: the folder `model_repository/` of the checkout, unless told otherwise."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import PenstockError
from penstock.settings import QUEUE_DELAY_MS

VARIABLE = "PENSTOCK_MODEL_REPOSITORY"
_OF_CHECKOUT = Path(__file__).resolve().parents[2] / "model_repository"
_FIRST_MEMBER = "features"
_DELAY = re.compile(r"(?<=max_queue_delay_microseconds:)\s*\d+")


def find_model_repository(named: str | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """`named`, else $PENSTOCK_MODEL_REPOSITORY, else the checkout's; PenstockError if there is none or it has no `asr`.

    A wheel does not carry the folder: who installs one (a container image, say) sets the variable.
    """
    given = named or environment.get(VARIABLE)
    path = Path(given).expanduser().absolute() if given else _OF_CHECKOUT
    if (path / "asr" / "config.pbtxt").is_file():
        return path
    if given:
        raise PenstockError(f"{given}: not a model repository of Penstock: asr/config.pbtxt is missing")
    raise PenstockError(
        f"model_repository/ not found: Penstock does not run from a checkout; name the folder with --model-repository "
        f"or {VARIABLE}"
    )


def copy_with_queue_delay(repository: Path, directory: Path, delay_ms: int) -> Path:
    """Makes `directory`: the same models, whose requests wait `delay_ms` for others to share their batches.

    They wait at the first member; at a later one, for the rest of the first one's batch, as long as `repository` says
    but no longer than that. Configurations are copied, everything else is linked to.
    """
    for config in repository.glob("*/config.pbtxt"):
        model = directory / config.parent.name
        model.mkdir(parents=True)
        for entry in config.parent.iterdir():
            if entry != config:
                (model / entry.name).symlink_to(entry.absolute())
        original = config.read_text(encoding="utf-8")
        if model.name == _FIRST_MEMBER and not _DELAY.search(original):
            raise PenstockError(f"{config}: has no max_queue_delay_microseconds, which {QUEUE_DELAY_MS.flag} changes")
        text = _with_delay(original, 1000 * delay_ms, model.name == _FIRST_MEMBER)
        (model / config.name).write_text(text, encoding="utf-8")
    return directory


def _with_delay(text: str, delay_us: int, is_first: bool) -> str:
    return _DELAY.sub(lambda found: f" {delay_us if is_first else min(int(found[0]), delay_us)}", text)
