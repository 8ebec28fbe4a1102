"""The audio of one stream of an offline model: samples in, log-mel of its windows out. Independent of requests."""

from collections import deque
from dataclasses import dataclass

import torch

from penstock.encoder.window.encoder import MelReader
from penstock.frontend.window_mel import MelPieces, WindowMel
from penstock.model.config import ModelConfig
from penstock.pipeline.options.windows import LiveWindow, is_long
from penstock.pipeline.slots.ticket import FINALIZE, LIVE, LOCAL


class FileAudio:
    """A file: its log-mel is normalized over all of it, so it leaves after the end, a piece at a time."""

    def __init__(self, mel: MelPieces, window: str | None, sample_rate_hz: int):
        """window: the stream's option."""
        self._mel, self._window, self._rate_hz = mel, window, sample_rate_hz
        self.has_ended = False
        self.flags = 0
        """Flags of all rows of the stream in a ticket."""

    @property
    def samples(self) -> int:
        """Samples of the stream so far."""
        return self._mel.samples

    held_samples = samples
    """Samples that count against the server's limit."""

    @property
    def covered_samples(self) -> int:
        """Samples of the stream whose words are due: all once the file has ended."""
        return self.samples if self.has_ended else 0

    @property
    def is_complete(self) -> bool:
        """True when the stream has ended and all its log-mel has gone on."""
        return self.has_ended and not self._mel.pieces_left

    def add(self, samples: torch.Tensor) -> None:
        """Takes the next samples [n] float32."""
        self._mel.add(samples)

    def end(self) -> None:
        """Takes the end of the stream."""
        self._mel.end()
        self.has_ended, self.flags = True, LOCAL * is_long(self.samples, self._rate_hz, self._window)

    def next_mel(self, encoded_windows: int) -> torch.Tensor | None:
        """Returns the log-mel [n, F] that can go on now: after the end, the next piece."""
        return self._mel.take() if self.has_ended and self._mel.pieces_left else None


@dataclass
class _Cut:
    """The windows of a part of a live stream that the encoder sees by itself; places are samples of the stream."""

    origin: int
    end: int | None = None
    """None while the part goes on."""
    taken: int = 0
    """Windows that have left."""


class LiveAudio:
    """A live stream: the samples that its next windows need. Each window's log-mel is that of its samples alone.

    Where the client ends a segment, the windows begin anew.
    """

    def __init__(self, mel: WindowMel, window: LiveWindow, config: ModelConfig):
        self.window, self._mel, self._config = window, mel, config
        self._frame_samples = config.encoder_frame_samples
        self._parts: list[torch.Tensor] = []
        self._reader = MelReader(self._parts)
        self._cuts = deque([_Cut(0)])
        """The first is that whose windows leave; the last goes on."""
        self._taken, self._most_ahead = 0, window.most_ahead(config.encoder_frame_ms)
        self.samples, self.has_ended, self.flags = 0, False, LIVE
        self.segment_end = 0
        """With FINALIZE in `flags`: samples of the stream up to there."""

    @property
    def held_samples(self) -> int:
        """Samples of a window, or all that the next windows need if that is more."""
        return self.held_after(0)

    def held_after(self, samples: int) -> int:
        """`held_samples` after as many more."""
        cut = self._cuts[0]
        waiting = self.samples + samples - cut.origin - self.window.begin(cut.taken) * self._frame_samples
        return max(self.window.frames * self._frame_samples, waiting)

    @property
    def covered_samples(self) -> int:
        """Samples of complete windows; all up to the end of the first segment that ends."""
        cut = self._cuts[0]
        if cut.end is not None:
            return cut.end
        return cut.origin + self._complete(cut) * self.window.chunk * self._frame_samples

    @property
    def is_complete(self) -> bool:
        """Implements `FileAudio.is_complete`."""
        return self.has_ended and len(self._cuts) == 1 and self._cuts[0].taken == self._due(self._cuts[0])

    def add(self, samples: torch.Tensor) -> None:
        """Implements `FileAudio.add`."""
        self.samples += len(samples)
        self.flags = LIVE
        if len(samples):
            self._parts.append(samples.clone())  # the request's memory is Triton's

    def end_segment(self) -> None:
        """Ends the segment after all samples; the windows of later ones begin there."""
        self._cuts[-1].end = self.samples
        self._cuts.append(_Cut(self.samples))

    def end(self) -> None:
        """Implements `FileAudio.end`."""
        self.has_ended, self._cuts[-1].end = True, self.samples

    def next_mel(self, encoded_windows: int) -> torch.Tensor | None:
        """The windows that are due, one after another; those that would wait in the encoder stay here as samples.

        Those of one segment at most: with its last ones `flags` has FINALIZE.
        """
        cut = self._cuts[0]
        due = self._due(cut)
        count = min(due - cut.taken, encoded_windows + self._most_ahead - self._taken)
        windows = [self._window(cut, number) for number in range(cut.taken, cut.taken + count)]
        cut.taken += len(windows)
        self._taken += len(windows)
        # Not before the segment's last window has left: a row has windows of one segment alone.
        if cut.taken == due and len(self._cuts) > 1:
            self.flags |= FINALIZE
            self._cuts.popleft()
            self.segment_end = self._cuts[0].origin
        return torch.cat(windows) if windows else None

    def _complete(self, cut: _Cut) -> int:
        end = self.samples if cut.end is None else cut.end
        return self.window.complete((end - cut.origin) // self._frame_samples)

    def _due(self, cut: _Cut) -> int:
        """Windows that can be encoded: after the end also one with the frames that are left, if there are any."""
        complete = self._complete(cut)
        if cut.end is None:
            return complete
        mel_frames = (cut.end - cut.origin) // self._config.features.hop_samples
        return complete + (-(-mel_frames // self._config.encoder.subsampling_factor) > complete * self.window.chunk)

    def _window(self, cut: _Cut, number: int) -> torch.Tensor:
        begin, end = (
            cut.origin + frames * self._frame_samples for frames in (self.window.begin(number), self.window.end(number))
        )
        return self._mel(self._reader.read(begin, min(end, self.samples if cut.end is None else cut.end)))


StreamAudio = FileAudio | LiveAudio
"""The audio of one stream: both are used in the same way."""
