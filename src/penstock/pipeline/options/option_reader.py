"""Reads the options of streams for one model and its settings."""

from collections.abc import Mapping
from typing import Any

from penstock.errors import ErrorCode, StreamError, shown
from penstock.model.bundle import Checkpoint
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoder_offer import offer_decoders
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.language_offer import offer_languages
from penstock.pipeline.options.live_window import live_window
from penstock.pipeline.options.stream_options import ResolvedOptions, parse_stream_options
from penstock.scoring.wfst.words import read_words


class OptionReader:
    """Holds what options are checked against: the model's decoders, languages and tokens, and the graph's words."""

    def __init__(self, checkpoint: Checkpoint, decoding: DecodingConfig):
        self._decoding, self._offer = decoding, offer_decoders(checkpoint.config, decoding)
        self._languages = offer_languages(checkpoint.config, decoding)
        self._tokenizer = Tokenizer(checkpoint.tokenizer_path)
        self._config = checkpoint.config
        self._graph_words = read_words(decoding.graph) if decoding.graph else None

    def read(self, options: Mapping[str, Any]) -> ResolvedOptions:
        """Validates options of a stream's start; StreamError as from `parse_stream_options`."""
        if options.get("window") is not None and not self._config.encoder.is_offline:
            message = f"window is {shown(options['window'])}, but the model is a streaming one; accepted: nothing"
            raise StreamError(ErrorCode.OPTION_INVALID, message)
        read = parse_stream_options(
            options, self._decoding, self._tokenizer, self._offer, self._graph_words, self._languages
        )
        live_window(read.window, self._config)
        return read
