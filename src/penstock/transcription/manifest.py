"""NeMo manifests, JSON lines, of any length: lines are read as they are wanted. Audio files need not exist.

`read_lines` opens a file; `parse_lines` takes lines from anywhere.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import ManifestError, shown
from penstock.frontend.audio_file import ROUNDING_S, FilePart

Phrases = tuple[str | tuple[str, float], ...]
"""Phrases to boost, each alone or with its boost."""
_LANGUAGES = ("lang", "source_lang", "target_lang")


class ManifestLine(NamedTuple):
    """One line of a manifest; raises ManifestError for fields that are wrong."""

    where: str
    """The manifest and the number of the line, for messages."""
    number: int
    """From 1."""
    fields: dict[str, Any]
    audio: FilePart
    """The whole file unless the line has `offset`; its path starts at the folder of the manifest."""
    stated_s: float | None
    """Value of `duration`: of the part, or as the line states it of the whole file."""
    language: str | None
    """Value of `lang`, or of `source_lang` and `target_lang`, which must be equal."""
    boosted_phrases: Phrases

    def text(self, field: str) -> str:
        """A field that must be a string."""
        return text_of(self.where, self.fields, field)


def read_lines(manifest: str | Path) -> Iterator[ManifestLine]:
    """The lines of a file. Raises ManifestError, which names the line and the field."""
    try:
        with open(manifest, encoding="utf-8-sig", newline="\n") as file:  # JSON strings may have other line ends
            yield from parse_lines(file, str(manifest), Path(manifest).parent)
    except OSError as error:
        raise ManifestError(f"{manifest}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{manifest}: not UTF-8 text: {error}") from error


def parse_lines(lines: Iterable[str], name: str, folder: str | Path) -> Iterator[ManifestLine]:
    """Parses each line when it is wanted; empty ones are left out. name: of the manifest, for messages.

    folder: a path or URL at which relative paths start. As in NeMo, "~" is the home directory, and a file that the
    folder lacks may be in the current directory. Raises as `read_lines`.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _parse(f"{name}:{number}", number, line, folder)


def is_stated_wrongly(stated_s: float | None, audio_s: float) -> bool:
    """True if a stated duration differs from that of the audio by more than rounding."""
    return stated_s is not None and abs(stated_s - audio_s) > ROUNDING_S


def text_of(where: str, entry: dict[str, Any], field: str) -> str:
    """A field that must be a string. Raises ManifestError."""
    if field not in entry:
        raise ManifestError(f"{where}: {field}: is missing")
    value = entry[field]
    if not isinstance(value, str):
        raise ManifestError(f"{where}: {field}: {shown(value)}, expected a string")
    return value


def _parse(where: str, number: int, line: str, folder: str | Path) -> ManifestLine:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{where}: not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise ManifestError(f"{where}: {line.strip()[:40]!r}, expected a JSON object with audio_filepath")
    if not (path := text_of(where, entry, "audio_filepath")):
        raise ManifestError(f"{where}: audio_filepath: is empty")
    offset_s, duration_s = _seconds(where, entry, "offset"), _seconds(where, entry, "duration")
    audio = FilePart(_located(path, folder), offset_s, None if offset_s is None else duration_s)
    return ManifestLine(where, number, entry, audio, duration_s, _language(where, entry), _phrases(where, entry))


def _located(path: str, folder: str | Path) -> str:
    if "://" in path or "://" in str(folder):
        return path if "://" in path else f"{folder}/{path}"
    path = os.path.expanduser(path)
    found = str(Path(folder) / path)
    is_here = not os.path.isabs(path) and not os.path.exists(found) and os.path.exists(path)
    return path if is_here or found == "-" else found


def _seconds(where: str, entry: dict[str, Any], field: str) -> float | None:
    value = entry.get(field)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (is_number and (0 < value < 1e9 or (value == 0 and field == "offset"))):  # not NaN
        return value if value is None else float(value)
    accepted = "a number of seconds from 0" if field == "offset" else "a positive number of seconds"
    raise ManifestError(f"{where}: {field}: {shown(value)}, expected {accepted}")


def _language(where: str, entry: dict[str, Any]) -> str | None:
    given = {field: text_of(where, entry, field) for field in _LANGUAGES if entry.get(field) is not None}
    if len(set(given.values())) > 1:
        raise ManifestError(f"{where}: {shown(given)}, expected one language: nothing is translated")
    return next(iter(given.values()), None)


def _phrases(where: str, entry: dict[str, Any]) -> Phrases:
    value = entry.get("boosted_phrases")
    if value is None:
        return ()
    if isinstance(value, list):
        phrases = [tuple(phrase) if isinstance(phrase, list) else phrase for phrase in value]
        if all(map(_is_phrase, phrases)):
            return tuple(phrases)
    raise ManifestError(f"{where}: boosted_phrases: {value!r}, expected a list of phrases or [phrase, boost] pairs")


def _is_phrase(value: object) -> bool:
    if not isinstance(value, tuple):
        return isinstance(value, str)
    is_pair = len(value) == 2 and isinstance(value[0], str)
    return is_pair and isinstance(value[1], int | float) and not isinstance(value[1], bool)
