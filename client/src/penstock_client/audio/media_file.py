"""Reads recordings with FFmpeg, of the package `av`: the default audio track, on the time line of its file."""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock_client.audio.formats import DEMUXERS, MPEG_BYTES, has_stated_frames
from penstock_client.audio.pcm import Block, check_form
from penstock_client.audio.remarks import CUT, DAMAGED, GAP, MIN_LOST_S, UNREAD, Remarks

INSTALL = "pip install av"
BLOCK_SAMPLES = 65_536
"""Of all channels."""
_MICROSECONDS = 1_000_000
_TIMED = {"matroska", "mov", "mpegts", "mpeg", "flv", "asf", "avi", "ogg"}
"""Formats with times of their own; those of the others follow from the samples."""
_STATED = {
    "aiff", "ape", "asf", "au", "caf", "flac", "mov", "nistsphere", "rm", "sox", "tak", "tta", "voc", "w64", "wav", "wv"
}  # fmt: skip
"""Formats whose header states the duration of the track, where FFmpeg does not estimate it."""
_PROTECTED = {"drms", "enca"}
"""Sample entries of MP4 with encryption."""
_DEFAULT = 1
"""FFmpeg's flag AV_DISPOSITION_DEFAULT."""
_LAST_AMR_MODE = {"amrnb": 7, "amrwb": 8}
"""Of frames with speech (3GPP TS 26.101, 26.201)."""
_MIN_GAP_S = 0.1
"""Times of WebM are whole milliseconds, and programs that record live write jitter."""
_MP3_TOLERANCE_S = 0.25
"""By which FFmpeg's duration of MP3 may differ where files are joined, or by this share of 10 s."""
_MIN_FAULT_S, _READ_AHEAD_S = 0.01, 2.0
_MAX_GAP_S, _MAX_TS_GAP_S = 3600.0, 10.0
"""A time that is later than this is wrong; in transport streams it begins another program."""
_DTYPES = {"u8": "u1", "s16": "i2", "s32": "i4", "s64": "i8", "flt": "f4", "dbl": "f8"}
_FRAMES = 32
_MAX_FAULTS = 1000
"""Of the container, with no audio between them."""
_MAX_OGG_PAGE_BYTES = 65_307


class MediaReader:
    """Reads a file block by block, as `WavReader` does; close it, or use it as a context manager.

    Closes the file with itself. Packets that are damaged, and holes in the file's times, become silence and remarks.
    Raises ValueError with the reason why the file is unusable, and ImportError without FFmpeg.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self._av = _av()
        self._media: Any = None
        self.remarks = Remarks()
        self._faults_s = 0.0
        """Seconds of packets that could not be decoded since the last good frame."""
        self._has_fault = self._has_early_fault = self._is_cut = self._is_joined = False
        self._complaint = ""
        """FFmpeg's first words about a fault."""
        self._has_stated_frames = has_stated_frames(file.read(MPEG_BYTES))
        file.seek(0)
        try:
            with self._captured() as messages:
                try:
                    self._media = self._av.open(file, options={"format_whitelist": ",".join(DEMUXERS)})
                finally:
                    self._read_messages(messages)
            # FFmpeg has read ahead, in a small file to its end: the fault is at a hole, or there the end is missing.
            self._has_early_fault, self._has_fault = self._has_fault, False
            self._name: str = self._media.format.name.split(",")[0]
            self._track = self._choose_track()
            self._tick_s = float(self._track.time_base)
            self._frames = self._read_frames()
            self._first = next(self._frames, None)
            if self._first is None:
                raise ValueError(self._unusable())
            self.rate_hz: int = self._first.sample_rate
            self.channels: int = len(self._first.layout.channels)
            check_form(self.channels, self.rate_hz)
        except self._av.FFmpegError as error:
            self._close_media()
            raise ValueError(f"not a readable audio file: {self._complaint or error.strerror}") from None
        except BaseException:
            self._close_media()
            raise
        self._origin_s = (self._media.start_time or 0) / _MICROSECONDS
        first_s = self._time_s(self._first)
        self.start_s: float = first_s if first_s is not None and first_s >= _MIN_GAP_S else 0.0
        """The time of the first sample in the file."""
        self.seconds: float | None = self._stated_s()
        """Duration of the track from the header; None where it has none, or only a guess."""

    def blocks(self) -> Iterator[Block]:
        """The samples, up to the end of the file. Their rate and channels may change."""
        parts: list[npt.NDArray[np.float32]] = []
        rate_hz = count = 0
        for part in self._parts():
            channels = part.samples.shape[1]
            if parts and (part.rate_hz != rate_hz or parts[0].shape[1] != channels or count * channels > BLOCK_SAMPLES):
                yield Block(rate_hz, np.concatenate(parts))
                parts, count = [], 0
            parts.append(part.samples)
            rate_hz, count = part.rate_hz, count + len(part.samples)
        if parts:
            yield Block(rate_hz, np.concatenate(parts))

    def close(self) -> None:
        """Closes the file."""
        self._close_media()
        self._file.close()

    def _close_media(self) -> None:
        if self._media is not None:
            self._media.close()

    def __enter__(self) -> "MediaReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _choose_track(self) -> Any:
        """The default audio track, else that with the most channels, as FFmpeg's command chooses."""
        tracks = self._media.streams.audio
        if not tracks:
            others = " and ".join(sorted({each.type for each in self._media.streams})) or "no known track"
            raise ValueError(f"has no audio track: {self._name} with {others}")
        track = max(tracks, key=lambda each: (int(each.disposition) & _DEFAULT, _channels(each)))
        if track.codec_context is None:
            raise ValueError(f"has audio of a codec that FFmpeg does not decode, in {self._name}")
        with suppress(UnicodeDecodeError):  # a tag may be a number
            if track.codec_context.codec_tag in _PROTECTED:
                raise ValueError("is protected (DRM); accepted: files without protection")
        return track

    def _read_frames(self) -> Iterator[Any]:
        """The decoded frames. What cannot be decoded is noted in `_faults_s` and `_has_fault`, at its place."""
        faults, packets, packet = 0, self._media.demux(self._track), self._track
        while packet is not None and faults < _MAX_FAULTS:
            frames: list[Any] = []
            last: list[Any] = []
            error = silence_s = None
            with self._captured() as messages:  # of some packets at a time, for it takes as long as decoding one
                try:
                    while len(frames) < _FRAMES and not messages and silence_s is None:
                        frames += last
                        last, packet = [], self._track
                        if (packet := next(packets, None)) is None:
                            break
                        if (silence_s := self._silence_s(packet)) is None:
                            last = self._track.codec_context.decode(packet)
                            self._is_cut |= packet.is_corrupt and self._name != "caf"
                except self._av.FFmpegError as failure:
                    error = failure
            if frames or last:
                faults = 0
            yield from frames
            self._faults_s += silence_s or 0.0
            self._read_messages(messages)
            if error is not None:
                faults += 1
                self._has_fault, self._complaint = True, self._complaint or error.strerror
                if packet is self._track:  # it was not read
                    packets = self._media.demux(self._track)
                elif packet.duration:
                    self._faults_s += float(packet.duration * packet.time_base)
            yield from last

    def _silence_s(self, packet: Any) -> float | None:
        """Duration of the silence that a packet without speech stands for; None for one to be decoded."""
        if self._name not in ("mp3", "amr"):
            return None
        head = bytes(memoryview(packet)[:64])
        if self._name == "mp3" and has_stated_frames(head):  # facts of a file, also in the middle of joined ones
            return 0.0
        if self._name == "amr" and head and head[0] >> 3 & 15 > _LAST_AMR_MODE[self._track.codec_context.name]:
            return float(packet.duration * packet.time_base)  # comfort noise, which FFmpeg does not decode
        return None

    def _parts(self) -> Iterator[Block]:
        """The samples of each frame, and silence where the file has none."""
        done_s, shift_s = 0.0, -self.start_s
        fault_s = 0.0 if self._has_early_fault else None
        """The place of a fault so far without a hole: FFmpeg reads ahead of the frames that it returns."""
        frame = self._first
        while frame is not None:
            samples = _samples(frame)
            if self._has_fault:
                fault_s, self._has_fault = max(done_s, _MIN_FAULT_S), False
            time_s = self._time_s(frame)
            hole_s = self._faults_s if time_s is None else time_s + shift_s - done_s
            if not -_MIN_GAP_S < hole_s <= self._most_gap_s(time_s):
                shift_s, hole_s = shift_s - hole_s, 0.0  # the times begin anew, as in joined files
            if hole_s >= (_MIN_GAP_S if fault_s is None and time_s is not None else _MIN_FAULT_S):
                if fault_s is not None or time_s is not None:
                    self.remarks.note(GAP if fault_s is None else DAMAGED, self.start_s + done_s, hole_s)
                yield from _silence(hole_s, frame.sample_rate, samples.shape[1])
                done_s, fault_s = done_s + hole_s, None
            elif fault_s and done_s - fault_s > _READ_AHEAD_S:
                self.remarks.note(DAMAGED, self.start_s + fault_s)
                fault_s = None
            self._faults_s = 0.0
            yield Block(frame.sample_rate, samples)
            done_s += len(samples) / frame.sample_rate
            frame = next(self._frames, None)
        self._has_fault |= fault_s is not None
        self._note_end(done_s)

    def _note_end(self, done_s: float) -> None:
        if self._name == "mov":
            self._look_at_boxes()
        lost_s = max(0.0, max(self.seconds or 0.0, self._ogg_end_s()) - done_s)
        if lost_s < (MIN_LOST_S if self._name != "mp3" else _MP3_TOLERANCE_S * max(1.0, done_s / 10)):
            lost_s = self._faults_s
            self._has_fault &= self.seconds is None  # else it is in other data, behind the last sample
        if self._has_fault or self._is_cut or lost_s:
            self.remarks.note(CUT, self.start_s + done_s, lost_s)
        if self._is_joined:
            self.remarks.note(UNREAD, self.start_s + done_s)

    def _time_s(self, frame: Any) -> float | None:
        """The time of a frame from the file's beginning; None where the file has none."""
        if frame.pts is None or self._name not in _TIMED:
            return None
        return float(frame.pts * self._tick_s - self._origin_s)

    def _most_gap_s(self, time_s: float | None) -> float:
        if time_s is None or self._name in ("mpegts", "mpeg"):
            return _MAX_TS_GAP_S
        duration_s = (self._media.duration or 0) / _MICROSECONDS
        return _MAX_GAP_S if not duration_s or time_s <= duration_s else 0.0

    def _stated_s(self) -> float | None:
        media, track = self._media, self._track
        if self._name == "mp3":
            is_stated = self._has_stated_frames
        elif self._name == "matroska":
            is_stated = len(media.streams) == 1  # the duration of the longest track
        else:
            is_stated = self._name in _STATED and (self._name != "caf" or track.codec_context.name.startswith("pcm"))
        if not is_stated:
            return None
        duration_s = (
            float(track.duration * track.time_base) if track.duration else (media.duration or 0) / _MICROSECONDS
        )
        return duration_s or None

    def _ogg_end_s(self) -> float:
        """The time in the last page of an Ogg file (RFC 3533, section 6), which must be marked as the last."""
        if self._name != "ogg":
            return 0.0
        self._file.seek(max(0, self._file.seek(0, io.SEEK_END) - _MAX_OGG_PAGE_BYTES))
        tail = self._file.read()
        page = tail[tail.rfind(b"OggS") :]
        if len(page) < 27 or not page[5] & 4 or len(page) < 27 + page[26] + sum(page[27 : 27 + page[26]]):
            self._is_cut = True
            return 0.0
        return float(int.from_bytes(page[6:14], "little") * self._track.time_base)

    def _look_at_boxes(self) -> None:
        """Finds a second MP4 file behind the first one, whose index knows nothing of it, and boxes that are cut."""
        end, position = self._file.seek(0, io.SEEK_END), 0
        while position < end:
            self._file.seek(position)
            header = self._file.read(16)
            size, kind = int.from_bytes(header[:4], "big"), header[4:8]
            if size == 1:
                size = int.from_bytes(header[8:16], "big")
            self._is_joined |= position > 0 and kind == b"ftyp"
            position += size or end
            if size and (size < 8 or position > end or not kind.isalnum()):
                self._is_cut = True
                break

    def _unusable(self) -> str:
        codec = self._track.codec_context.name
        return f"has no readable audio: {codec} in {self._name}" + (f", {self._complaint}" if self._complaint else "")

    @contextmanager
    def _captured(self) -> Iterator[list[tuple[int, str, str]]]:
        """FFmpeg's messages about errors, after many of which its decoders go on."""
        logging = self._av.logging
        before = logging.get_level(), logging.get_skip_repeated()
        logging.set_level(logging.ERROR)
        logging.set_skip_repeated(False)
        try:
            with logging.Capture() as messages:
                yield messages
        finally:
            logging.set_level(before[0])
            logging.set_skip_repeated(before[1])

    def _read_messages(self, messages: Iterable[tuple[int, str, str]]) -> None:
        """Takes them for faults."""
        for _, _, message in messages:
            self._complaint = self._complaint or message.strip()
            if "prematurely" in message or "partial file" in message:
                self._is_cut = True
            else:
                self._has_fault = True


def has_ffmpeg() -> bool:
    """True if the package `av` is installed."""
    return find_spec("av") is not None


def _channels(track: Any) -> int:
    return track.codec_context.channels if track.codec_context else 0


def _samples(frame: Any) -> npt.NDArray[np.float32]:
    """[n, channels], full scale 1."""
    channels, form = len(frame.layout.channels), frame.format
    samples: npt.NDArray[Any]
    planes = [np.frombuffer(plane, _DTYPES[form.packed.name]) for plane in frame.planes]  # `to_ndarray` takes longer
    if form.is_planar:
        samples = np.stack([plane[: frame.samples] for plane in planes], axis=1)
    else:
        samples = planes[0][: frame.samples * channels].reshape(-1, channels)
    if samples.dtype.kind == "f":
        return np.array(samples, np.float32)
    offset = 128 if samples.dtype == np.uint8 else 0
    return (samples.astype(np.float32) - np.float32(offset)) / np.float32(2 ** (8 * samples.dtype.itemsize - 1))


def _silence(duration_s: float, rate_hz: int, channels: int) -> Iterator[Block]:
    left = round(duration_s * rate_hz)
    while left > 0:
        size = min(left, max(1, BLOCK_SAMPLES // channels))
        yield Block(rate_hz, np.zeros((size, channels), np.float32))
        left -= size


def _av() -> Any:
    """The package av. Imported late: it is an extra, and takes 0.1 s."""
    try:
        import av
        import av.logging
    except ImportError as error:
        raise ImportError(
            f"has a format that needs FFmpeg, which is not installed: {INSTALL} (the extra `media`)"
        ) from error
    return av
