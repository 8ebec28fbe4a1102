"""A server's model, limits and decoders, from the parameters of the model `asr`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

FINGERPRINT, SERVER_ID = "penstock_fingerprint", "penstock_server_id"
FIGURES, SPEAKERS, _WINDOWS = "figure_languages", "speakers", "windows"
"""The parameters of the fields of `ServerInfo` that are read elsewhere, too."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's model, limits and decoders. `parameters` has all of them, also those of a later version."""

    version: str
    """Version of Penstock."""
    model: str
    """Name of the checkpoint."""
    architecture: str
    """Heads of the model, such as "RNN-T, CTC"."""
    context: tuple[int, int] | None
    """Encoder frames of left and right context; None for an offline model."""
    chunk_ms: float
    """Audio of one chunk: words come in steps of this duration; 0 for an offline model."""
    sample_rate_hz: int
    languages: tuple[str, ...]
    """Languages that a stream can choose; empty for a checkpoint without a choice."""
    detected_languages: tuple[str, ...]
    """Languages that a checkpoint without a choice recognizes, as its model card names them; empty where none does."""
    decoders: tuple[str, ...]
    """Decoders that a stream can choose; the first is the default."""
    max_streams: int
    """Concurrent streams."""
    max_request_s: float
    """Audio of one request."""
    idle_s: float
    """A stream without a request for this long expires."""
    max_beam_size: int
    max_boosted_phrases: int
    has_language_model: bool
    has_internal_language_model: bool
    """True for a factorized model; servers of earlier versions have none."""
    alphabet: frozenset[str] | None
    """The characters that the model writes; empty where it writes every one, None for servers of earlier versions."""
    windows: tuple[str, ...]
    """Values of the option `window` of an offline model that have names. It recognizes whole files, unless the option
    says `live` or the sizes of windows: results come by polling after a stream's end. Empty for a streaming model."""
    max_audio_s: float
    """Audio of all open files of an offline model; 0 for a streaming model, and for servers of earlier versions."""
    fingerprint: str
    """The same where checkpoint, context, settings and version are: words do not depend on which server it is; "" for
    servers of earlier versions."""
    parameters: Mapping[str, str]
    """Parameters as the server sent them, by name."""

    @property
    def server_id(self) -> str:
        """Random for each start of a server, the same at all its addresses; "" for servers of earlier versions."""
        return self.parameters.get(SERVER_ID, "")

    @property
    def figure_languages(self) -> tuple[str, ...]:
        """Languages with rules that write spoken numbers as figures, and "auto" where the model names that of a
        segment; empty for servers of earlier versions."""
        return _names(self.parameters.get(FIGURES, ""))

    @property
    def speakers(self) -> int:
        """Speakers that its speaker model tells apart; 0 without one."""
        return _count(self.parameters.get(SPEAKERS, "0"))


def takes_files(parameters: Mapping[str, str]) -> bool:
    """True for the parameters of an offline model: it recognizes whole files, and results come by polling."""
    return bool(parameters.get(_WINDOWS))


def parse_server_info(parameters: Mapping[str, str]) -> ServerInfo:
    """Reads the parameters of `asr`. KeyError or ValueError where they are not a Penstock server's."""
    windows = _names(parameters.get(_WINDOWS, ""))
    return ServerInfo(
        version=parameters["version"],
        model=parameters["model"],
        architecture=parameters["architecture"],
        context=None if windows else _context(parameters["context"]),
        chunk_ms=0.0 if windows else _number(parameters["chunk_ms"]),
        sample_rate_hz=_count(parameters["sample_rate_hz"], least=1),
        languages=_names(parameters["languages"]),
        detected_languages=_names(parameters.get("detected_languages", "")),
        decoders=_names(parameters["decoders"]),
        max_streams=_count(parameters["max_streams"], least=1),
        max_request_s=_number(parameters["max_request_s"]),
        idle_s=_number(parameters["idle_s"]),
        max_beam_size=_count(parameters["max_beam_size"]),
        max_boosted_phrases=_count(parameters["max_boosted_phrases"]),
        has_language_model=parameters["has_language_model"] == "true",
        has_internal_language_model=parameters.get("has_internal_language_model") == "true",
        alphabet=frozenset(parameters["alphabet"]) if "alphabet" in parameters else None,
        windows=windows,
        max_audio_s=_number(parameters.get("max_audio_s", "0")),
        fingerprint=parameters.get(FINGERPRINT, ""),
        parameters=dict(sorted(parameters.items())),
    )


def _count(text: str, least: int = 0) -> int:
    count = int(text)
    if count < least:
        raise ValueError(f"{count}, expected {least} or more")
    return count


def _number(text: str) -> float:
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError(f"{text}, expected a number from 0")
    return number


def _context(text: str) -> tuple[int, int]:
    left, right = map(int, text.split(","))
    return left, right


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)
