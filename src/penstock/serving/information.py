"""A server's model, limits and decoders as parameters of `asr` and `asr_batch`: readable over KServe without audio."""

from penstock.decoding.beam.sizes import BeamSizes
from penstock.frontend.chunk_geometry import chunk_geometry
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoder_offer import offer_decoders
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.language_offer import offer_languages
from penstock.pipeline.options.stream_options import MAX_REQUEST_S
from penstock.version import __version__
from penstock_client.options import MAX_PHRASES


def server_information(
    checkpoint: Checkpoint, context: AttentionContext, decoding: DecodingConfig, max_streams: int, idle_s: float
) -> dict[str, str]:
    """Values by the names of `penstock_client.ServerInfo`; lists are separated by commas, an empty list is ""."""
    config, offer = checkpoint.config, offer_decoders(checkpoint.config, decoding)
    tokenizer = Tokenizer(checkpoint.tokenizer_path)
    chunks = chunk_geometry(config, context)
    values = {
        "version": __version__,
        "model": checkpoint.directory.name,
        "architecture": config.head_name,
        "context": f"{context.left},{context.right}",
        "chunk_ms": f"{config.chunk_ms(context):g}",
        "chunk_samples": chunks.chunk_samples,
        "first_chunk_samples": chunks.first_chunk_samples,
        "sample_rate_hz": config.features.sample_rate_hz,
        "languages": ",".join(offer_languages(config, decoding).names),
        "decoders": ",".join(offer.names),
        "max_streams": max_streams,
        "max_request_s": f"{MAX_REQUEST_S:g}",
        "idle_s": f"{idle_s:g}",
        "max_beam_size": BeamSizes(decoding.beam_size).beam_size,
        "max_boosted_phrases": MAX_PHRASES,
        "alphabet": "" if tokenizer.writes_everything else "".join(sorted(tokenizer.alphabet)),
        "has_language_model": "true" if decoding.lm else "false",
        "has_internal_language_model": "true" if offer.ilm else "false",
    }
    return {name: str(value) for name, value in values.items()}
