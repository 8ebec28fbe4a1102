"""The options of a server. Each is an environment variable and a flag of `penstock serve`.

The fields of `ServeOptions` are their only declaration; the decoder's come from
`penstock.pipeline.options.decoding_config`. `Settings` has the values that models use.
"""

import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from penstock.errors import CheckpointError, SettingError
from penstock.model.config import AttentionContext, parse_context
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock_common.declaration import About, Listen, Options
from penstock_common.listening import LOOPBACK
from penstock_common.log_lines import LogFormat, LogLevel

# Only the model processes need these: a launcher or a health check starts without numpy and torch.
if TYPE_CHECKING:
    from penstock.model.bundle import Checkpoint
    from penstock.model.config import ModelConfig
    from penstock.pipeline.memory.server_memory import SpeakerMemory
    from penstock.pipeline.slots.drain import DrainBoard
    from penstock.pipeline.slots.ledger import LatencyTable, SlotLedger
    from penstock.speakers.bundle import SpeakerCheckpoint, SpeakerConfig

DRAIN_BOARD, LEDGER = "drain", "slots"
"""Names in the runtime directory."""

MAX_STREAM_COUNT = 65_536
"""The memory of the streams' states is the limit before that; `penstock serve` states it."""

MAX_IDLE_S = 60.0
"""The longest time that a stream of a vanished client holds its slot."""

_AUDIO_SHARE, _LEAST_AUDIO_S = 0.8, 600
"""The share of the available memory that a start may use for everything; the audio that is accepted in any case."""

SAMPLE_RATE_HZ = 16_000
"""Sample rate of the audio that clients send."""
_SPEAKER_FRAME_MS = 10


Precision = Literal["auto", "float32", "tf32", "float16", "bfloat16", "int8"]
"""The names of penstock.encoder.precision, which imports torch."""


def _context(given: Any) -> Any:
    try:
        return parse_context(given) if isinstance(given, str) else given
    except SettingError as error:
        raise ValueError(error.message) from None


class _ProcessOptions(Options):
    error: ClassVar[type[Exception]] = SettingError

    model: Annotated[
        str | None,
        Field(min_length=1),
        About("MODEL", unset="the bundled an4-rnnt-hybrid", accepted="a bundle directory, a .nemo file or a hub id"),
    ] = Field(default=None, description="checkpoint")
    context: Annotated[
        AttentionContext | None,
        BeforeValidator(_context),
        About(
            "L,R",
            unset="560 ms chunks if the model has them, else its first",
            accepted="LEFT,RIGHT, for example 70,6",
        ),
    ] = Field(default=None, description="attention context in encoder frames")
    max_streams: Annotated[int, Field(ge=1, le=MAX_STREAM_COUNT), About("N")] = Field(
        default=64, description="maximum live streams"
    )
    speakers: Annotated[
        str | None,
        Field(min_length=1),
        About("BUNDLE", unset="no speaker model", accepted="a bundle directory", page="speakers.md#serving"),
    ] = Field(default=None, description="speaker model, for the speaker of each word")
    speaker_streams: Annotated[
        int | None,
        Field(ge=1, le=MAX_STREAM_COUNT),
        About("N", unset="as many as --max-streams", page="speakers.md#serving"),
    ] = Field(default=None, description="maximum live streams with speakers")
    idle_seconds: Annotated[float, Field(gt=0, le=MAX_IDLE_S), About("S", page="serving.md#idle-streams")] = Field(
        default=30.0, description="idle timeout of a stream, in seconds"
    )
    max_file_minutes: Annotated[int, Field(ge=1, le=1440), About("N", page="serving.md#files")] = Field(
        default=240, description="longest file of an offline model, in minutes"
    )
    max_audio_s: Annotated[
        int | None, Field(ge=1), About("S", unset="as much as fits into the memory", page="serving.md#files")
    ] = Field(default=None, description="audio of all open files of an offline model, in seconds")
    device: Annotated[
        str | None,
        Field(pattern=r"^(cpu|cuda(:\d+)?)$"),
        About("DEVICE", unset="cuda if available, else cpu", accepted="cpu, cuda, cuda:NUMBER"),
    ] = Field(default=None, description="device of the models")
    precision: Annotated[Precision, About("NAME")] = Field(
        default="auto",
        description="precision of the encoder; auto: float16 on CUDA, float32 on a CPU; int8: CPU only, predictor too",
    )
    threads: Annotated[int, Field(ge=1, le=256), About("N")] = Field(
        default=1, description="CPU threads of each model process"
    )
    queue_delay_ms: Annotated[
        int | None,
        Field(ge=0, le=1000),
        About(
            "MS",
            unset="40, or a quarter of the chunk if that is less; 5 on a GPU and for an offline model",
            page="serving.md#batching-delay",
        ),
    ] = Field(default=None, description="batching delay, in milliseconds")


_Port = Annotated[int, Field(ge=0, le=65_535), About("PORT")]
_LOGS = "operations.md#logs"


class ServeOptions(DecodingConfig, _ProcessOptions):
    """The options of a server, in the order of the help of `penstock serve`. SettingError names a wrong one."""

    replaced: ClassVar[dict[str, str]] = {"listen_on_all_interfaces": "listen"}

    http_port: _Port = Field(default=8000, description="HTTP port; 0: any free one")
    grpc_port: _Port = Field(default=8001, description="gRPC port; 0: any free one")
    metrics_port: _Port = Field(default=8002, description="metrics port; 0: any free one")
    listen: Listen = Field(default=LOOPBACK, description="address of the ports, unencrypted; with 0.0.0.0 gRPC's is ::")
    drain_seconds: Annotated[int, Field(ge=1), About("S", page="operations.md#stopping")] = Field(
        default=8, description="time for live streams after SIGTERM, in seconds"
    )
    restart: Annotated[bool, About(page="operations.md#restart-after-a-crash")] = Field(
        default=False, description="start the server again after a crash"
    )
    gateway: Annotated[bool, About(page="gateway_operations.md")] = Field(
        default=False, description="also start a gateway, for clients of Riva and OpenAI"
    )
    model_repository: Annotated[
        str | None, Field(min_length=1), About("DIR", unset="the bundled one", accepted="a directory")
    ] = Field(default=None, description="directory of the Triton models")
    log_format: Annotated[LogFormat, About("NAME", page=_LOGS)] = Field(default="text", description="format of the log")
    log_level: Annotated[LogLevel, About("NAME", page=_LOGS)] = Field(
        default="info", description="least severe lines in the log"
    )
    verbose: bool = Field(default=False, description="print Triton's complete log")

    @property
    def decoding(self) -> DecodingConfig:
        """The options of the decoder."""
        return DecodingConfig(**{name: getattr(self, name) for name in DecodingConfig.model_fields})

    @property
    def all_speaker_streams(self) -> int:
        """Streams of the speaker model; 0 without one."""
        return (self.speaker_streams or self.max_streams) if self.speakers else 0


MODEL, CONTEXT, THREADS, PRECISION = map(ServeOptions.option, ("model", "context", "threads", "precision"))
"""Also options of commands without a server."""

IMAGE_OPTIONS = (
    "http_port", "grpc_port", "metrics_port", "listen", "model_repository", "gateway",
)  # fmt: skip
"""Fixed by the images, where the gateway is another one: `compose.yaml` does not pass them on."""

OTHER_VARIABLES = ("PENSTOCK_CACHE", "PENSTOCK_TRITONSERVER", "PENSTOCK_RUNTIME_DIR")
"""Variables without a flag, read by model/resolve.py, triton_install.py and here."""
FOREIGN_VARIABLES = ("PENSTOCK_URL", "PENSTOCK_MICROPHONE", "PENSTOCK_ORACLE_NEMO")
"""Variables that the client and tests read."""


@dataclass(frozen=True)
class Settings:
    """Configuration of a model process, from the variables of the settings and PENSTOCK_RUNTIME_DIR."""

    checkpoint: "Checkpoint"
    options: ServeOptions
    """The options as they are given; those below are what is used of them."""
    context: AttentionContext | None
    """None for an offline model."""
    runtime_directory: Path
    device: str
    precision: str
    max_audio_s: int
    """Audio of all open streams of an offline model."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, is_verified: bool = False) -> "Settings":
        """Reads the variables; SettingError names the one that is missing or wrong.

        is_verified: another process of the server compares the bundle's files with their SHA-256.
        """
        from penstock.model.bundle import Checkpoint

        options = ServeOptions.read(environment)
        if not options.model:
            raise SettingError("PENSTOCK_MODEL is not set; accepted: a bundle made by `penstock import`")
        checkpoint = Checkpoint(options.model, is_verified)
        # The model processes of a server have the same parent, so its id gives them a common directory.
        runtime = environment.get("PENSTOCK_RUNTIME_DIR") or f"{tempfile.gettempdir()}/penstock-{os.getppid()}"
        device = options.device or best_device()
        precision = checkpoint.choose_precision(options.precision, device)
        max_audio_s = audio_limit_s(checkpoint.config, options.model_copy(update={"precision": precision}))
        context = select_served_context(checkpoint, options.context)
        return cls(checkpoint, options, context, Path(runtime), device, precision, max_audio_s)

    @property
    def context_name(self) -> str:
        """For logs."""
        return "offline" if self.context is None else f"context {self.context}"

    @property
    def decoded_chunk(self) -> tuple[int, float]:
        """Encoder frames that are decoded at once, and their duration in ms: of an offline model those of one poll."""
        from penstock.pipeline.options.windows import decoded_frames

        config = self.checkpoint.config
        frames = decoded_frames(config) if self.context is None else self.context.chunk_encoder_frames
        return frames, frames * config.encoder_frame_ms

    @property
    def slots(self) -> int:
        """Slots of every stage's state arrays."""
        from penstock.pipeline.slots.table import slot_count

        return slot_count(self.options.max_streams)

    @property
    def speaker_config(self) -> "SpeakerConfig | None":
        """The configuration of the speaker model; None without one."""
        from penstock.speakers.bundle import SpeakerCheckpoint

        return SpeakerCheckpoint(self.options.speakers, is_verified=True).config if self.options.speakers else None

    def open_board(self) -> "DrainBoard":
        """The board through which the launcher drains the streams."""
        from penstock.pipeline.slots.drain import DrainBoard

        return DrainBoard(self.slots, self.runtime_directory / DRAIN_BOARD)

    def open_latency(self) -> "LatencyTable":
        """The latencies that the decoder shares with the features model."""
        from penstock.pipeline.slots.ledger import LatencyTable

        return LatencyTable(self.slots, self.runtime_directory / "latency")

    def open_ledger(self) -> "SlotLedger":
        """The ledger that this server's model processes share."""
        from penstock.pipeline.slots.ledger import SlotLedger

        return SlotLedger(self.slots, self.runtime_directory / LEDGER)


def select_served_context(checkpoint: "Checkpoint", wanted: AttentionContext | None) -> AttentionContext | None:
    """Like `EncoderConfig.select_context`, None for an offline model; CheckpointError for another sample rate."""
    rate_hz = checkpoint.config.features.sample_rate_hz
    if rate_hz != SAMPLE_RATE_HZ:
        raise CheckpointError(
            f"{checkpoint.directory}: a checkpoint for audio at {rate_hz} Hz; accepted by a server: {SAMPLE_RATE_HZ} Hz"
        )
    if checkpoint.config.encoder.is_offline:
        if wanted is not None:
            option = ServeOptions.option("context")
            raise SettingError(f"{option.flag} is {wanted}, but the model is offline; accepted: no {option.flag}")
        return None
    return checkpoint.config.encoder.select_context(wanted)


def audio_limit_s(config: "ModelConfig", options: ServeOptions) -> int:
    """The audio of all open files of an offline model, by default what fits into the memory that is available now."""
    if options.max_audio_s is not None or not config.encoder.is_offline:
        return options.max_audio_s or 0
    from penstock.pipeline.memory.server_memory import audio_bytes_per_s, server_memory
    from penstock.runtime import available_memory_bytes

    others = server_memory(config, None, options.decoding, options.max_streams, precision=options.precision)
    left = _AUDIO_SHARE * available_memory_bytes() - others.with_speakers(served_speaker_memory(options)).total
    device = options.device or best_device()
    if device != "cpu":
        left = min(left, _left_on_device(config, options, device))
    return max(int(left / audio_bytes_per_s(config)), _LEAST_AUDIO_S)


def served_speakers(options: ServeOptions) -> "SpeakerCheckpoint | None":
    """The speaker model; CheckpointError if it cannot be served, SettingError for its streams without it."""
    if not options.speakers:
        if options.speaker_streams:
            flags = [ServeOptions.option(name).flag for name in ("speaker_streams", "speakers")]
            raise SettingError(f"{flags[0]} is {options.speaker_streams}, but there is no {flags[1]} BUNDLE")
        return None
    from penstock.speakers.bundle import SpeakerCheckpoint

    checkpoint = SpeakerCheckpoint(options.speakers)
    features = checkpoint.config.features
    if (features.sample_rate_hz, features.hop_ms) != (SAMPLE_RATE_HZ, _SPEAKER_FRAME_MS):
        raise CheckpointError(
            f"{checkpoint.directory}: a speaker model for audio at {features.sample_rate_hz} Hz, with frames of "
            f"{features.hop_ms:g} ms; accepted by a server: {SAMPLE_RATE_HZ} Hz, {_SPEAKER_FRAME_MS} ms"
        )
    return checkpoint


def served_speaker_memory(options: ServeOptions, number_bytes: int = 4) -> "SpeakerMemory | None":
    """The memory of the speaker model, if there is one."""
    from penstock.pipeline.memory.server_memory import speaker_memory

    checkpoint = served_speakers(options)
    return speaker_memory(checkpoint.config, options.all_speaker_streams, number_bytes) if checkpoint else None


def _left_on_device(config: "ModelConfig", options: ServeOptions, device: str) -> float:
    """Bytes for audio on a CUDA device."""
    import torch

    from penstock.encoder.precision import number_type
    from penstock.pipeline.memory.device_memory import device_memory

    if not torch.cuda.is_available():  # said where the device is used
        return math.inf
    size = number_type(options.precision, device).itemsize
    others = device_memory(config, None, options.decoding, options.max_streams, size)
    others = others.with_speakers(served_speaker_memory(options, size))
    return _AUDIO_SHARE * torch.cuda.mem_get_info(device)[0] - sum(others)


def best_device() -> str:
    """The kind of device that is used where none is chosen; imports torch."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
