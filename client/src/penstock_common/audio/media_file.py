"""Reads recordings with FFmpeg, of the package `av`: the default audio track, on the time line of its file."""

import io
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from penstock_common.audio.formats import DEMUXERS, is_mp3_tag, mp3_seconds, ogg_end
from penstock_common.audio.pcm import CUT, DAMAGED, GAP, MIN_LOST_S, UNREAD, Block, Remarks, check_form

NEEDED = "has a format that needs FFmpeg, which is not installed: pip install av (the extra `media`)"
BLOCK_SAMPLES = 65_536
"""All channels together."""
_MICROSECONDS = 1_000_000
_TIMED = {"matroska", "mov", "mpegts", "mpeg", "flv", "asf", "avi", "ogg"}
"""Formats with times of their own; those of the others follow from the samples."""
_STATED = {
    "aiff", "ape", "asf", "au", "caf", "flac", "mov", "nistsphere", "rm", "sox", "tak", "tta", "voc", "w64", "wav", "wv"
}  # fmt: skip
"""Formats whose header states the duration of the track, where FFmpeg does not estimate it."""
_PROTECTED = {"drms", "enca", "aavd"}
"""Sample entries of MP4 with encryption."""
_DEFAULT = 1
"""FFmpeg's flag AV_DISPOSITION_DEFAULT."""
_LAST_AMR_MODE = {"amrnb": 7, "amrwb": 8}
"""The last mode of frames with speech (3GPP TS 26.101, 26.201)."""
_MIN_GAP_S = 0.1
"""Times of WebM are whole milliseconds, and programs that record live write jitter."""
_MP3_TOLERANCE_S = 0.3
"""Delay of the encoder and padding, which the number of frames in a tag counts."""
_MIN_FAULT_S, _READ_AHEAD_S = 0.01, 2.0
_MAX_GAP_S, _MAX_TS_GAP_S = 3600.0, 10.0
"""A time that is later than this is wrong; in transport streams it begins another program."""
_DTYPES = {"u8": "u1", "s16": "i2", "s32": "i4", "s64": "i8", "flt": "f4", "dbl": "f8"}
_DIRECT_PLANES = 7
"""PyAV looks for a plane behind the last one: with eight it finds one that is none."""
_BATCH_SAMPLES = 65_536
_JOIN_PACKETS = 3
_MP3_HEAD_BYTES = 1 << 18
"""With a picture in a tag in front."""
_MAX_FAULTS = 1000
"""Faults of the container in a row, with no audio between them."""


class _Faults:
    """Faults of a file that are found while its frames are read."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Duration of packets that could not be decoded since the last good frame."""
        self.is_found = self.is_early = self.is_cut = self.is_joined = False
        """Early: found before the first frame."""
        self.complaint = ""
        """FFmpeg's first words about a fault."""
        self.components: set[str] | None = None
        """The parts of FFmpeg whose messages concern the track; None for all."""

    def read(self, messages: Iterable[tuple[int, str, str]]) -> None:
        """Takes FFmpeg's messages for faults: after many errors its decoders go on."""
        for _, component, message in messages:
            if self.components is not None and component not in self.components:
                continue  # of a picture, or of a track that is not read
            self.complaint = self.complaint or message.strip()
            if "prematurely" in message or "partial file" in message:
                self.is_cut = True
            else:
                self.is_found = True


class MediaReader:
    """Reads a file block by block, as `WavReader` does. Close it.

    Closes the file with itself. Packets that are damaged, and holes in the file's times, become silence and remarks.
    Raises ValueError with the reason why the file is unusable, and ImportError without FFmpeg.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self._av = _av()
        self._media: Any = None
        self.remarks = Remarks()
        self._faults = _Faults()
        head = self._file.read(_MP3_HEAD_BYTES)
        self._silence_left_s = _MAX_GAP_S
        self._packets = _JOIN_PACKETS
        """Packets since the last file that was joined began; at first those of the only file count."""
        self._converters: dict[tuple[str, str, int], Any] = {}
        self._file.seek(0)
        messages: list[tuple[int, str, str]] = []
        try:
            with _captured(self._av) as messages:
                self._media = self._av.open(self._file, options={"format_whitelist": ",".join(DEMUXERS)})
            self._name: str = self._media.format.name.split(",")[0]
            self._track = self._choose_track()
            codec = self._track.codec_context
            self._faults.components = {self._media.format.name, codec.name, codec.codec.name}
            # FFmpeg has read ahead, in a small file to its end: the fault is at a hole, or there the end is missing.
            self._faults.read(messages)
            self._faults.is_early, self._faults.is_found = self._faults.is_found, False
            self._frames = self._read_frames()
            self._first = next(self._frames, None)
            if self._first is None:
                raise ValueError(self._unusable())
            self.rate_hz: int = self._first.sample_rate
            self.channels: int = len(self._first.layout.channels)
            check_form(self.channels, self.rate_hz)
        except self._av.FFmpegError as error:
            self.close_media()
            self._faults.read(messages)
            raise ValueError(f"not a readable audio file: {self._faults.complaint or error.strerror}") from None
        except BaseException:
            self.close_media()
            raise
        self._origin_s = (self._media.start_time or 0) / _MICROSECONDS
        first_s = self._time_s(self._first)
        self.start_s: float = first_s if first_s is not None and _MIN_GAP_S <= first_s <= _MAX_GAP_S else 0.0
        """The time of the first sample in the file."""
        if first_s is not None and first_s > _MAX_GAP_S:
            self.remarks.note(DAMAGED, 0.0)
        self.seconds: float | None = self._stated_s(head)
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
        self.close_media()
        self._file.close()

    def close_media(self) -> None:
        """Closes FFmpeg's side of the file."""
        if self._media is not None:
            self._media.close()

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
        """The decoded frames. What cannot be decoded is noted in `_faults`, at its place."""
        faults, packets, packet = 0, self._media.demux(self._track), self._track
        while packet is not None and faults < _MAX_FAULTS:
            frames: list[Any] = []
            last: list[Any] = []
            samples, error, silence_s = 0, None, None
            with _captured(self._av) as messages:  # of some packets at a time, for it takes as long as decoding one
                try:
                    while samples < _BATCH_SAMPLES and not messages and silence_s is None:
                        frames += last
                        last, packet = [], self._track
                        if (packet := next(packets, None)) is None:
                            break
                        if (silence_s := self._silence_s(packet)) is None:
                            self._packets += 1
                            last = self._track.codec_context.decode(packet)
                            samples += sum(each.samples * len(each.layout.channels) for each in last)
                            self._faults.is_cut |= packet.is_corrupt and self._name != "caf"
                except self._av.FFmpegError as failure:
                    error = failure
            if frames or last:
                faults = 0
            yield from frames
            self._faults.seconds += silence_s or 0.0
            if self._packets <= _JOIN_PACKETS:  # they refer to those of another file
                messages, error = [], error if packet is self._track else None
            self._faults.read(messages)
            if error is not None:
                faults += 1
                self._faults.is_found, self._faults.complaint = True, self._faults.complaint or error.strerror
                if packet is self._track:  # it was not read
                    packets = self._media.demux(self._track)
                elif packet.duration:
                    self._faults.seconds += float(packet.duration * packet.time_base)
            yield from last

    def _silence_s(self, packet: Any) -> float | None:
        """Duration of the silence that a packet without speech stands for; None for one to be decoded."""
        if self._name not in ("mp3", "amr"):
            return None
        head = bytes(memoryview(packet)[:64])
        if self._name == "mp3" and is_mp3_tag(head):  # of a file behind the first one
            self.seconds, self._packets = None, 0
            return 0.0
        if self._name == "amr" and head and head[0] >> 3 & 15 > _LAST_AMR_MODE[self._track.codec_context.name]:
            return float(packet.duration * packet.time_base)  # comfort noise, which FFmpeg does not decode
        return None

    def _parts(self) -> Iterator[Block]:
        """The samples of each frame, and silence where the file has none."""
        done_s, shift_s = 0.0, -self.start_s
        fault_s = 0.0 if self._faults.is_early else None
        """The place of a fault so far without a hole: FFmpeg reads ahead of the frames that it returns."""
        frame = self._first
        while frame is not None:
            samples = self._samples(frame)
            if self._faults.is_found:
                fault_s, self._faults.is_found = max(done_s, _MIN_FAULT_S), False
            time_s = self._time_s(frame)
            hole_s = self._faults.seconds if time_s is None else time_s + shift_s - done_s
            if not -_MIN_GAP_S < hole_s <= self._most_gap_s(time_s):
                if hole_s > 0:
                    self.remarks.note(DAMAGED, self.start_s + done_s)
                    fault_s = None
                shift_s, hole_s = shift_s - hole_s, 0.0  # else the times begin anew, as in joined files
            if hole_s >= (_MIN_GAP_S if fault_s is None and time_s is not None else _MIN_FAULT_S):
                if fault_s is not None or time_s is not None:
                    self.remarks.note(GAP if fault_s is None else DAMAGED, self.start_s + done_s, hole_s)
                yield from _silence(hole_s, frame.sample_rate, samples.shape[1])
                done_s, fault_s = done_s + hole_s, None
                self._silence_left_s -= hole_s
            elif fault_s and done_s - fault_s > _READ_AHEAD_S:
                self.remarks.note(DAMAGED, self.start_s + fault_s)
                fault_s = None
            self._faults.seconds = 0.0
            yield Block(frame.sample_rate, samples)
            done_s += len(samples) / frame.sample_rate
            frame = next(self._frames, None)
        self._faults.is_found |= fault_s is not None
        self._note_end(done_s)

    def _note_end(self, done_s: float) -> None:
        if self._name == "mov":
            self._look_at_boxes()
        lost_s = max(0.0, max(self.seconds or 0.0, self._ogg_end_s()) - done_s)
        if lost_s < (MIN_LOST_S if self._name != "mp3" else _MP3_TOLERANCE_S):
            lost_s = self._faults.seconds
            self._faults.is_found &= self.seconds is None  # else it is in other data, behind the last sample
        if self._faults.is_found or self._faults.is_cut or lost_s:
            self.remarks.note(CUT, self.start_s + done_s, lost_s)
        if self._faults.is_joined:
            self.remarks.note(UNREAD, self.start_s + done_s)

    def _time_s(self, frame: Any) -> float | None:
        """The time of a frame from the file's beginning; None where the file has none."""
        if frame.pts is None or self._name not in _TIMED:
            return None
        return float(frame.pts * float(self._track.time_base) - self._origin_s)

    def _most_gap_s(self, time_s: float | None) -> float:
        if time_s is None or self._name in ("mpegts", "mpeg"):
            return _MAX_TS_GAP_S
        duration_s = (self._media.duration or 0) / _MICROSECONDS
        return self._silence_left_s if not duration_s or time_s <= duration_s + 1 else 0.0

    def _stated_s(self, head: bytes) -> float | None:
        media, track = self._media, self._track
        if self._name == "mp3":
            return mp3_seconds(head)
        if self._name == "matroska":
            is_stated = len(media.streams) == 1  # the duration of the longest track
        else:
            codec = track.codec_context.name
            is_wrong = codec == "pcm_f24le" or (self._name == "caf" and not codec.startswith("pcm"))
            is_stated = self._name in _STATED and not is_wrong
        if not is_stated:
            return None
        duration_s = (
            float(track.duration * track.time_base) if track.duration else (media.duration or 0) / _MICROSECONDS
        )
        return duration_s or None

    def _ogg_end_s(self) -> float:
        """The time in the last page of an Ogg file, counted as `start_s` is; 0 where it is not known."""
        if self._name != "ogg":
            return 0.0
        end = ogg_end(self._file)
        self._faults.is_cut |= end is None
        end_s = (end or 0) * float(self._track.time_base) - self._origin_s - self.start_s
        return end_s if end_s < _MAX_GAP_S * 24 else 0.0

    def _look_at_boxes(self) -> None:
        """Finds a second MP4 file behind the first one, whose index knows nothing of it, and boxes that are cut."""
        end, position = self._file.seek(0, io.SEEK_END), 0
        while position < end:
            self._file.seek(position)
            header = self._file.read(16)
            size, kind = int.from_bytes(header[:4], "big"), header[4:8]
            if size == 1:
                size = int.from_bytes(header[8:16], "big")
            self._faults.is_joined |= position > 0 and kind == b"ftyp"
            position += size or end
            if size and (size < 8 or position > end or not kind.isalnum()):
                self._faults.is_cut = True
                break

    def _unusable(self) -> str:
        codec = self._track.codec_context.name
        return f"has no readable audio: {codec} in {self._name}" + (
            f", {self._faults.complaint}" if self._faults.complaint else ""
        )

    def _samples(self, frame: Any) -> npt.NDArray[np.float32]:
        """[n, channels], full scale 1."""
        channels, form = len(frame.layout.channels), frame.format
        if form.is_planar and channels > _DIRECT_PLANES:
            key = form.name, frame.layout.name, frame.sample_rate
            if key not in self._converters:
                self._converters[key] = self._av.AudioResampler("flt", frame.layout, frame.sample_rate)
            return np.concatenate([self._samples(each) for each in self._converters[key].resample(frame)])
        samples: npt.NDArray[Any]
        planes = [np.frombuffer(each, _DTYPES[form.packed.name]) for each in frame.planes]  # `to_ndarray` takes longer
        if form.is_planar:
            samples = np.stack([plane[: frame.samples] for plane in planes], axis=1)
        else:
            samples = planes[0][: frame.samples * channels].reshape(-1, channels)
        if samples.dtype.kind == "f":
            return np.array(samples, np.float32)
        offset = 128 if samples.dtype == np.uint8 else 0
        return (samples.astype(np.float32) - np.float32(offset)) / np.float32(2 ** (8 * samples.dtype.itemsize - 1))


def has_ffmpeg() -> bool:
    """True if the package `av` is installed."""
    return find_spec("av") is not None


def accepted_formats() -> str:
    """The formats that can be read here, for errors."""
    first = "WAV, " if has_ffmpeg() else "WAV, AIFF, AU, CAF, FLAC; with FFmpeg (the extra `media`) "
    return f"accepted: {first}MP3, AAC, m4a, MP4, Ogg, Opus, WebM, FLAC and other formats"


@contextmanager
def _captured(av: Any) -> Iterator[list[tuple[int, str, str]]]:
    """FFmpeg's messages about errors in this thread; their level is one for the process."""
    global _capturing
    with _CAPTURE_LOCK:
        _capturing += 1
        if _capturing == 1:
            _LEVELS[:] = av.logging.get_level(), av.logging.get_skip_repeated()
            av.logging.set_level(av.logging.ERROR)
            av.logging.set_skip_repeated(False)
    try:
        with av.logging.Capture() as messages:
            yield messages
    finally:
        with _CAPTURE_LOCK:
            _capturing -= 1
            if not _capturing:
                av.logging.set_level(_LEVELS[0])
                av.logging.set_skip_repeated(_LEVELS[1])


_capturing = 0
_CAPTURE_LOCK = threading.Lock()
_LEVELS: list[Any] = []


def _channels(track: Any) -> int:
    return track.codec_context.channels if track.codec_context else 0


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
        raise ImportError(NEEDED) from error
    return av
