"""Where the Triton models are: the folder `model_repository/` of the checkout, unless told otherwise."""

import os
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import PenstockError

VARIABLE = "PENSTOCK_MODEL_REPOSITORY"
_OF_CHECKOUT = Path(__file__).resolve().parents[2] / "model_repository"


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
