"""Results of a stream: text and words of its segments, accumulated on the host."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.decoding.wfst.n_best import SegmentLattice
from penstock.errors import StreamError
from penstock.model.config import ModelConfig
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.results.words import Decoded, SegmentTranscript, Token, Word


@dataclass(frozen=True)
class Alternative:
    """One of the N best transcripts of a whole segment."""

    text: str
    score: float
    """Log-probability with language model and boosting."""
    acoustic_score: float
    """Log-probability of the network alone, without language model and boosting."""
    words: tuple[Word, ...]
    """All words of the segment in this transcript."""
    speakers: tuple[int, ...] | None = None
    """Speaker of each word, from 1; 0 where it is not known. None without speakers."""


@dataclass(frozen=True)
class StreamResult:
    """The answer to one request of a stream."""

    segment: int
    """Number of the segment, from 0. A segment ends with `finalize` or with the stream."""
    text: str
    """Text of the segment so far."""
    is_final: bool
    """True for the last result of the segment: its text will not change."""
    audio_processed_s: float
    """Seconds of the stream decoded so far, all segments together."""
    words: tuple[Word, ...]
    """Words completed since the previous result; times count from the stream's start."""
    tokens: tuple[Token, ...]
    """Tokens found since the previous result; with a beam, only stable tokens."""
    alternatives: tuple[Alternative, ...] = ()
    """Best first, in the final result of a segment if the stream requested N-best; the first has the result's text."""
    lattice: SegmentLattice | None = None
    """With the alternatives of a search over a decoding graph."""
    language: str = ""
    """The model's last tag in the segment, as "en-US"; "" before the first, and for models without tags."""
    stable_chars: int = 0
    """Leading characters of `text` that later results of the segment keep; all of them in its final result.

    But for a word that goes on over a client's end of the segment: its text is in the next one.
    """
    word_speakers: tuple[int, ...] = ()
    """In a final result of a stream with speakers: that of each word of the segment, from 1; 0 if it is not known."""
    earlier: tuple["StreamResult", ...] = ()
    """Final results of the segments that ended before this one in the same request, with endpointing only."""

    @property
    def entries(self) -> tuple["StreamResult", ...]:
        """The earlier results and this one; all but the last are final."""
        return (*self.earlier, self)


def joined(parts: Sequence[StreamResult | StreamError]) -> StreamResult | StreamError:
    """One result of consecutive ones of a stream, its segments as `earlier` ones; or the error that ended them."""
    segments: list[StreamResult] = []
    for part in parts:
        if isinstance(part, StreamError):
            return part
        for entry in part.entries:
            if segments and segments[-1].segment == entry.segment:
                before = segments.pop()
                entry = replace(entry, words=before.words + entry.words, tokens=before.tokens + entry.tokens)
            segments.append(replace(entry, earlier=()))
    return with_earlier(segments)


def with_earlier(entries: Sequence[StreamResult]) -> StreamResult:
    """The last of a request's results, with those before it."""
    return replace(entries[-1], earlier=tuple(entries[:-1])) if len(entries) > 1 or entries[-1].earlier else entries[-1]


class StreamText:
    """Accumulates the transcript of one stream on the host."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: ModelConfig,
        keeps_tags: bool = False,
        has_alternatives: bool = True,
        has_end_tokens: bool = True,
    ):
        """keeps_tags: language tags are in the text and the words, too; has_alternatives: of a stream with N-best;
        has_end_tokens: `tokens` of the results have them, text and words never.
        """
        self._tokenizer = tokenizer
        self._tags = frozenset(config.tags)
        self._end_tokens = frozenset(config.end_tokens)
        self._dropped = self._end_tokens if keeps_tags else self._end_tokens | self._tags
        self.change(has_end_tokens)
        self._has_alternatives = has_alternatives
        self._sample_rate_hz = config.features.sample_rate_hz
        self._frame_ms = config.encoder_frame_ms
        self._shortest_token_frames = 0 if config.transducer and config.transducer.is_tdt else 1
        self._segment = -1
        self._language = ""
        """Language of the segment's stable tokens."""
        self._unchanged: StreamResult | None = None
        self.unstable: list[Token] = []
        """Tokens at the end of the segment that may still change."""
        self._open_segment(start_s=0.0)

    def update(
        self,
        decoded: Decoded,
        covered_samples: int,
        is_final: bool,
        next_start_samples: int | None = None,
    ) -> StreamResult:
        """Adds what a request decoded and returns the result; after a final result the next segment begins.

        covered_samples: as in `penstock.frontend.log_mel.ChunkRows`. next_start_samples: where the frames of the next
        segment begin; by default there.
        """
        self._unchanged = None
        processed_s = covered_samples / self._sample_rate_hz
        words = self._transcript.add(decoded.stable)
        # Before the unstable tokens are added: an alternative has its own in their place.
        alternatives = tuple(
            Alternative(whole.text, a.score, a.acoustic_score, tuple(whole.words))
            for a in decoded.alternatives
            for whole in [(self._empty_transcript() if a.is_whole else self._transcript).ending_with(a.tokens)]
        )
        tokens, self.unstable = decoded.stable, decoded.unstable
        self._language = self._last_language(decoded.stable) or self._language
        language = self._last_language(decoded.unstable) or self._language
        if is_final:
            words += self._transcript.add(decoded.unstable) + self._transcript.finish()
            tokens, self.unstable = decoded.stable + decoded.unstable, []
        if self._hides_end_tokens:
            tokens = [token for token in tokens if token.id not in self._end_tokens]
        result = StreamResult(
            segment=self._segment,
            text=self._transcript.text_with(self.unstable),
            is_final=is_final,
            audio_processed_s=processed_s,
            words=tuple(words),
            tokens=tuple(tokens),
            alternatives=alternatives,
            lattice=decoded.lattice,
            language=language,
            stable_chars=len(self._transcript.text),
        )
        if is_final:
            # After the result, which has the text of the segment that ends.
            start_s = processed_s if next_start_samples is None else next_start_samples / self._sample_rate_hz
            self._open_segment(start_s)
        return result

    def change(self, has_end_tokens: bool) -> None:
        """Changes the options, from the next segment on."""
        self._hides_end_tokens = bool(self._end_tokens) and not has_end_tokens

    def skip(self, next_start_samples: int) -> None:
        """Withholds the segment: the next one, which begins there, takes its number."""
        self._segment -= 1
        self._open_segment(next_start_samples / self._sample_rate_hz)

    def unchanged(self, covered_samples: int) -> StreamResult:
        """Returns the result of a request without new frames; the same object until something changes."""
        processed_s = covered_samples / self._sample_rate_hz
        if self._unchanged is None or self._unchanged.audio_processed_s != processed_s:
            text = self._transcript.text_with(self.unstable)
            language = self._last_language(self.unstable) or self._language
            self._unchanged = StreamResult(
                self._segment, text, False, processed_s, (), (), language=language,
                stable_chars=len(self._transcript.text),
            )  # fmt: skip
        return self._unchanged

    def _empty_transcript(self) -> SegmentTranscript:
        return SegmentTranscript(
            self._tokenizer,
            self._frame_ms,
            self._start_ms,
            self._dropped,
            self._has_alternatives,
            self._shortest_token_frames,
        )

    def _open_segment(self, start_s: float) -> None:
        self._segment += 1
        self._unchanged = None
        self._start_ms = 1000 * start_s
        self._transcript = self._empty_transcript()
        self._language = ""
        self.unstable = []

    def _last_language(self, tokens: list[Token]) -> str:
        """The language of the last tag of `tokens`; "" without one."""
        tag = next((token.id for token in reversed(tokens) if token.id in self._tags), None)
        return "" if tag is None else str(self._tokenizer.piece(tag))[1:-1]
