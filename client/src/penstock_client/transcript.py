"""What a stream has said so far, put together from its results."""

from dataclasses import dataclass, field

from penstock_client.protocol import Alternative, Result, Word


@dataclass
class Transcript:
    """Accumulates the results of one stream; `latency_s` and `is_complete` are set by the stream."""

    segment_texts: dict[int, str] = field(default_factory=dict)
    """Newest text of each segment."""
    words: list[Word] = field(default_factory=list)
    """Completed words of all segments."""
    tokens: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    """For each token its encoder frame, counted from the stream's start."""
    alternatives: tuple[Alternative, ...] = ()
    """Of the newest segment that is final, best first; see `StreamOptions.n_best`."""
    audio_processed_s: float = 0.0
    is_complete: bool = False
    """True once the last piece of audio has been answered."""
    latency_s: float | None = None
    """From the last piece of audio being sent to the final text; None until then."""

    @property
    def text(self) -> str:
        """Text of all segments so far."""
        return " ".join(text for _, text in sorted(self.segment_texts.items()) if text)

    def add(self, result: Result) -> None:
        """Takes in the stream's next result."""
        self.segment_texts[result.segment] = result.text
        self.words += result.new_words
        self.tokens += result.new_tokens
        self.timestamps += result.new_timestamps
        if result.is_final:
            self.alternatives = result.alternatives
        self.audio_processed_s = result.audio_processed_s
