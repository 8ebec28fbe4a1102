"""Steps of a speaker model: of many live streams at once, and of whole recordings."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F

from penstock.errors import ErrorCode, StreamError
from penstock.frontend.log_mel import LogMel
from penstock.frontend.window_mel import MelPieces, WindowMel
from penstock.speakers.bundle import QueueSize, SpeakerCheckpoint
from penstock.speakers.cache import SpeakerCache, StepRows
from penstock.speakers.network import SpeakerNetwork, open_network


class SpeakerSteps:
    """A network and the state of the streams that it follows."""

    def __init__(self, network: SpeakerNetwork, queue: QueueSize, slots: int):
        self.network = network
        self.cache = SpeakerCache(network.config, queue, slots, network.silence)

    @torch.no_grad()
    def step(self, rows: StepRows, size: int | None = None) -> torch.Tensor:
        """Returns probabilities [B, 8 L, K] float32 of the rows' chunks; those after a chunk's end are undefined.

        size: of the window, see `SpeakerCache.window`.
        """
        factor = self.network.config.subsampling_factor
        # 1) the network over the window
        window, lengths = self.cache.window(rows, size)
        fine = self.network(window, lengths).float().sigmoid()  # [B, 8 T, K]
        batch, count, _ = window.shape
        # 2) those of the chunk; then the state goes on
        first = lengths - rows.lengths + rows.left
        at = first[:, None] + torch.arange(rows.frames.shape[1], device=fine.device)
        at = at.clamp_max(count - 1).unsqueeze(2).expand(-1, -1, factor * fine.shape[2])
        chunk = fine.view(batch, count, -1).gather(1, at).view(batch, -1, fine.shape[2])
        self.cache.update(rows, window, of_encoder_frames(fine, factor))
        return chunk

    def step_of_mel(self, mel: torch.Tensor, numbers: torch.Tensor, size: int | None = None) -> torch.Tensor:
        """Does `step` with log-mel [B, L, 8 F] float32 and [4, B] int64: slots, look-back, chunk and all frames."""
        batch, count, width = mel.shape
        frames = self.network.embed(mel.view(-1, width // self.network.config.subsampling_factor))
        slots, left, chunk, lengths = numbers.unbind()
        return self.step(StepRows(slots, frames.view(batch, count, -1), left, chunk, lengths), size)


def of_encoder_frames(fine: torch.Tensor, factor: int) -> torch.Tensor:
    """Probabilities [B, T, K] of encoder frames, the mean of their parts [B, 8 T, K]."""
    return F.avg_pool1d(fine.transpose(1, 2), factor).transpose(1, 2)


class Diarizer:
    """Speaker diarization of a recording."""

    def __init__(self, checkpoint: SpeakerCheckpoint, precision: str = "float32"):
        """precision: as in `open_network`."""
        self.config, features = checkpoint.config, checkpoint.config.features
        self.log_mel = WindowMel(LogMel.of(checkpoint))
        self.network = open_network(checkpoint, precision)
        self.hop_s = features.hop_samples / features.sample_rate_hz
        """Seconds between two rows of probabilities."""

    def open(self) -> "SpeakerRecording":
        """A recording whose samples come in parts."""
        return SpeakerRecording(self, self.log_mel.open())

    def probabilities(self, samples: torch.Tensor) -> torch.Tensor:
        """Returns [N, K] float32 of samples [L] float32, a row for each log-mel frame: that a speaker speaks in it."""
        recording = self.open()
        recording.add(samples)
        return recording.end()

    @torch.no_grad()
    def of_mel(self, pieces: Iterable[torch.Tensor]) -> torch.Tensor:
        """Computes `probabilities` of log-mel frames in pieces [n, F]; all but the last have a multiple of eight.

        Raises StreamError where the model computes no numbers.
        """
        config, network, mel_frames = self.config, self.network, 0
        embedded = [network.silence.new_zeros(0, config.d_model)]
        for piece in pieces:
            embedded.append(network.embed(piece))
            mel_frames += len(piece)
        frames, size = torch.cat(embedded), config.file_step
        steps, slot = SpeakerSteps(network, config.file_queue, 1), torch.zeros(1, dtype=torch.int64)
        found = [torch.zeros(0, config.speakers)]
        for start in range(0, len(frames), size.chunk):
            first = max(start - size.left, 0)
            part = frames[first : start + size.chunk + size.right]
            chunk = min(size.chunk, len(frames) - start)
            left, chunks, length = (torch.tensor([count]) for count in (start - first, chunk, len(part)))
            probabilities = steps.step(StepRows(slot, part[None], left, chunks, length))[0]
            found.append(probabilities[: chunk * config.subsampling_factor])
        all_found = torch.cat(found)[:mel_frames]
        if not bool(all_found.isfinite().all()):
            raise StreamError(ErrorCode.STREAM_LOST, "the speaker model computes NaN for this audio")
        return all_found


class SpeakerRecording:
    """A recording that is being read; only its log-mel is kept."""

    def __init__(self, diarizer: Diarizer, mel: MelPieces):
        self._diarizer, self._mel = diarizer, mel

    def add(self, samples: torch.Tensor) -> None:
        """Takes the next samples [n] float32."""
        self._mel.add(samples)

    def end(self) -> torch.Tensor:
        """Returns probabilities as `Diarizer.probabilities`."""
        self._mel.end()
        return self._diarizer.of_mel(self._mel.take() for _ in range(self._mel.pieces_left))
