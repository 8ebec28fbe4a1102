"""What a stream is told: text and words of its segments, which grow here on the host, never on the device."""

from dataclasses import dataclass

from penstock.config import ModelConfig
from penstock.stages.decoder_lanes import Decoded
from penstock.tokenizer import Tokenizer
from penstock.transcript import Token, Transcript, Word


@dataclass(frozen=True)
class Alternative:
    """One of the n best readings of a whole segment."""

    text: str
    score: float
    """Log-probability with language model and boosting."""
    acoustic_score: float
    """Log-probability of the network alone."""
    words: tuple[Word, ...]
    """All words of the segment in this reading."""


@dataclass(frozen=True)
class StreamResult:
    """What a stream is told in answer to one request."""

    segment: int
    """Counts up from 0; a segment ends with `finalize` or with the stream."""
    text: str
    """Of the segment so far."""
    is_final: bool
    """True for the last result of the segment: its text will not change."""
    audio_processed_s: float
    """Audio of the stream that has been decoded, all segments together."""
    words: tuple[Word, ...]
    """Words finished since the stream's previous result; their times count from the stream's start."""
    tokens: tuple[Token, ...]
    """Tokens found since the stream's previous result; with a beam, those that will not change any more."""
    alternatives: tuple[Alternative, ...] = ()
    """In a segment's final result, of a stream that asked for its n best, best first; the first has the result's
    text."""


class StreamText:
    """Host side of one stream: what its segments say."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig):
        self._tokenizer = tokenizer
        self._sample_rate_hz = config.features.sample_rate_hz
        self._frame_ms = config.encoder_frame_ms
        self._segment = -1
        self._open_segment(start_s=0.0)

    def update(self, decoded: Decoded, covered_samples: int, is_final: bool) -> StreamResult:
        """Takes in what a request brought; behind a final result the next segment begins.

        covered_samples: as in `penstock.features.MelChunks`.
        """
        self._unchanged = None
        processed_s = covered_samples / self._sample_rate_hz
        words = self._transcript.add(decoded.stable)
        alternatives = tuple(
            Alternative(whole.text, a.score, a.acoustic_score, tuple(whole.words))
            for a in decoded.alternatives
            for whole in [self._transcript.ending_with(a.unstable)]
        )
        tokens, self.unstable = decoded.stable, decoded.unstable
        if is_final:
            words += self._transcript.add(decoded.unstable) + self._transcript.finish()
            tokens, self.unstable = decoded.stable + decoded.unstable, []
        result = StreamResult(
            segment=self._segment,
            text=self._transcript.text_with(self.unstable),
            is_final=is_final,
            audio_processed_s=processed_s,
            words=tuple(words),
            tokens=tuple(tokens),
            alternatives=alternatives,
        )
        if is_final:
            self._open_segment(processed_s)
        return result

    def unchanged(self, covered_samples: int) -> StreamResult:
        """The answer to a request that brought nothing and ends nothing; one object until something comes."""
        processed_s = covered_samples / self._sample_rate_hz
        if self._unchanged is None or self._unchanged.audio_processed_s != processed_s:
            text = self._transcript.text_with(self.unstable)
            self._unchanged = StreamResult(self._segment, text, False, processed_s, words=(), tokens=())
        return self._unchanged

    def _open_segment(self, start_s: float) -> None:
        self._segment += 1
        self._unchanged: StreamResult | None = None
        self._transcript = Transcript(self._tokenizer, self._frame_ms, 1000 * start_s)
        self.unstable: list[Token] = []
        """Tokens at the segment's end that may still change."""
