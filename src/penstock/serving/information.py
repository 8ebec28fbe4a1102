"""A server's model, limits and decoders as parameters of `asr` and `asr_batch`: readable over KServe without audio."""

import hashlib
import json
from pathlib import Path

from penstock.decoding.sizes import BeamSizes
from penstock.frontend.chunk_geometry import chunk_geometry
from penstock.model.bundle import Checkpoint
from penstock.model.bundle_files import TOKENIZER_FILE, WEIGHTS_FILE, sha256_of
from penstock.model.config import AttentionContext, ModelConfig
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import offer_decoders, offer_languages
from penstock.pipeline.options.stream_options import MAX_REQUEST_S
from penstock.speakers.bundle import SpeakerConfig
from penstock.version import __version__
from penstock_common.options import AUTO, FIGURE_LANGUAGES, MAX_PHRASES, WINDOWS
from penstock_common.server_info import FIGURES, FINGERPRINT

_FASTER_ONLY = ("cuda_graphs", "capture_beams", "kernels", "phrase_memory_mib")
"""Settings of the decoder that change no word."""


def server_information(
    checkpoint: Checkpoint,
    context: AttentionContext | None,
    decoding: DecodingConfig,
    max_streams: int,
    idle_s: float,
    drain_s: float | None = None,
    max_audio_s: int = 0,
    precision: str = "auto",
) -> dict[str, str]:
    """Values by the names of `ServerInfo`; lists are separated by commas, an empty list is "".

    max_audio_s: of an offline model. context: None for an offline model, which publishes its windows instead.
    precision: the option; `auto` is not published.
    """
    config, offer = checkpoint.config, offer_decoders(checkpoint.config, decoding)
    tokenizer = Tokenizer(checkpoint.tokenizer_path)
    languages = offer_languages(checkpoint, decoding)
    values = {
        "version": __version__,
        "model": checkpoint.directory.name,
        "architecture": config.head_name,
        **({"windows": ",".join(WINDOWS)} if context is None else _chunks(config, context)),
        "sample_rate_hz": config.features.sample_rate_hz,
        "languages": ",".join(languages.names),
        **({"detected_languages": ",".join(languages.detected)} if languages.detected else {}),
        FIGURES: ",".join((*FIGURE_LANGUAGES, *([AUTO] if languages.writes_tags else []))),
        "decoders": ",".join(offer.names),
        "max_streams": max_streams,
        "max_request_s": f"{MAX_REQUEST_S:g}",
        "idle_s": f"{idle_s:g}",
        "max_beam_size": BeamSizes(decoding.beam_size).beam_size,
        "max_boosted_phrases": MAX_PHRASES,
        "alphabet": "" if tokenizer.writes_everything else "".join(sorted(tokenizer.alphabet)),
        "has_language_model": "true" if decoding.lm else "false",
        "has_internal_language_model": "true" if offer.ilm else "false",
        **({} if drain_s is None else {"drain_s": f"{drain_s:g}"}),
        **({"max_audio_s": max_audio_s} if max_audio_s else {}),
        **({} if precision == "auto" else {"precision": precision}),
        FINGERPRINT: fingerprint(checkpoint, context, decoding, precision),
    }
    return {name: str(value) for name, value in values.items()}


def speaker_information(config: SpeakerConfig, streams: int) -> dict[str, str]:
    """More values where a speaker model is served, for this many streams."""
    delays_ms = (1000 * config.frame_s * (step.chunk + step.right) for step in config.steps.values())
    return {
        "speakers": str(config.speakers),
        "speaker_streams": str(streams),
        "speaker_modes": ",".join(config.steps),
        "speaker_delay_ms": ",".join(f"{delay_ms:g}" for delay_ms in delays_ms),
    }


def _chunks(config: ModelConfig, context: AttentionContext) -> dict[str, str | int]:
    geometry = chunk_geometry(config, context)
    return {
        "context": f"{context.left},{context.right}",
        "chunk_ms": f"{config.chunk_ms(context):g}",
        "chunk_samples": geometry.chunk_samples,
        "first_chunk_samples": geometry.first_chunk_samples,
    }


def fingerprint(
    checkpoint: Checkpoint, context: AttentionContext | None, decoding: DecodingConfig, precision: str = "auto"
) -> str:
    """SHA-256 of all that decides the words of a stream: a stream may go on where it is the same.

    Reads the language model and the graph as a whole. A precision is part of it only if it is int8: others follow
    from the device, and a server that may change a close word is better for a stream than none.
    """
    settings = {name: value for name, value in decoding.model_dump().items() if name not in _FASTER_ONLY}
    for name in ("lm", "graph"):
        settings[name] = sha256_of(Path(settings[name])) if settings[name] else None
    parts = {
        "version": __version__,
        "sha256": [sha256_of(checkpoint.directory / name) for name in (WEIGHTS_FILE, TOKENIZER_FILE)],
        "model": repr(checkpoint.config),
        "context": None if context is None else [context.left, context.right],
        "decoding": settings,
        **({"precision": precision} if precision == "int8" else {}),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
