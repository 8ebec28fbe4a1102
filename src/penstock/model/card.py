"""The model card of a checkpoint or bundle: README.md with front matter, as on the hub. A broken one counts as none."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import CheckpointError, SettingError, shown
from penstock.model.section import parse_yaml

CARD_FILE = "README.md"
_MAX_CARD_BYTES, _MAX_LANGUAGES = 1 << 20, 200
_FRONT_MATTER = re.compile(rb"---\r?\n(.*?)\r?\n---\s", re.DOTALL)
_LANGUAGE = re.compile("[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")


def card_languages(directory: Path) -> tuple[str, ...]:
    """The codes under `language` of the directory's card, such as "en", each once; none where no card names any."""
    named = _front_matter(directory).get("language")
    codes = named if isinstance(named, list) else [named]
    codes = ["no" if code is False else code for code in codes]  # as YAML reads it without quotes
    languages = dict.fromkeys(code for code in codes if isinstance(code, str) and _LANGUAGE.fullmatch(code))
    return tuple(languages)[:_MAX_LANGUAGES]


def write_languages(bundle: Path, codes: Sequence[str]) -> None:
    """Names the codes in the bundle's card, whose other fields and text stay. SettingError for a wrong code."""
    if wrong := [code for code in codes if not _LANGUAGE.fullmatch(code)]:
        raise SettingError(f"--language is {shown(wrong[0])}; accepted: codes such as en or pt-BR")
    path = bundle / CARD_FILE
    card = path.read_bytes() if path.exists() else b""
    known, match = _front_matter(bundle), _FRONT_MATTER.match(card)
    fields = yaml.safe_dump(known | {"language": list(codes)}, allow_unicode=True, sort_keys=False)
    path.write_bytes(b"---\n" + fields.encode() + b"---\n" + card[match.end() if known and match else 0 :])


def copy_card(source: Path, bundle: Path) -> None:
    """Copies the card of the directory `source`, if it has one, into a bundle."""
    if _front_matter(source):
        shutil.copyfile(source / CARD_FILE, bundle / CARD_FILE)


def _front_matter(directory: Path) -> dict[str, Any]:
    """The fields of the card; none without a card."""
    try:
        with (directory / CARD_FILE).open("rb") as file:
            match = _FRONT_MATTER.match(file.read(_MAX_CARD_BYTES))
        return parse_yaml(match[1]) if match else {}
    except (OSError, CheckpointError):
        return {}
