"""The options of a server. Each is an environment variable and a flag of `penstock serve`.

The decoder's options come from `penstock.pipeline.options.decoding_config`. `Settings` has the values that models use.
"""

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import CheckpointError, SettingError
from penstock.model.config import AttentionContext, parse_context
from penstock.pipeline.options.decoding_config import DECODING_SETTINGS, DecodingConfig
from penstock.pipeline.options.setting import Setting, Values, choice, switch, text, whole
from penstock.serving.log_format import FORMATS, LEVELS

# Only the model processes need these: a launcher or a health check starts without numpy and torch.
if TYPE_CHECKING:
    from penstock.model.bundle import Checkpoint
    from penstock.pipeline.slots.drain import DrainBoard
    from penstock.pipeline.slots.latency import LatencyTable
    from penstock.pipeline.slots.ledger import SlotLedger

DRAIN_BOARD = "drain"
"""Name of the drain board in the runtime directory."""

MAX_STREAM_COUNT = 65_536
"""The memory of the streams' states is the limit before that; `penstock serve` states it."""

MAX_IDLE_S = 60.0
"""The longest time that a stream of a vanished client holds its slot."""

SAMPLE_RATE_HZ = 16_000
"""Sample rate of the audio that clients send."""


def _device(given: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", given):
        raise ValueError
    return given


MODEL = Setting(
    "model", text("a bundle directory, a .nemo file or a hub id"), None, "MODEL", "checkpoint",
    unset="the bundled an4-rnnt-hybrid",
)  # fmt: skip
CONTEXT = Setting(
    "context",
    Values(parse_context, lambda value: isinstance(value, AttentionContext), "LEFT,RIGHT, for example 70,6"),
    None, "L,R", "attention context in encoder frames", unset="560 ms chunks if the model has them, else its first",
)  # fmt: skip
MAX_STREAMS = Setting("max_streams", whole(1, MAX_STREAM_COUNT), 64, "N", "maximum live streams")
IDLE_SECONDS = Setting(
    "idle_seconds",
    Values(float, lambda value: 0 < value <= MAX_IDLE_S, f"numbers above 0, up to {MAX_IDLE_S:g}"),  # rejects NaN too
    30.0, "S", "idle timeout of a stream, in seconds", page="serving.md#idle-streams",
)  # fmt: skip
DEVICE = Setting(
    "device", Values(_device, lambda value: True, "cpu, cuda, cuda:NUMBER"), None, "DEVICE", "device of the models",
    unset="cuda if available, else cpu",
)  # fmt: skip
# The names of penstock.encoder.precision, which imports torch.
PRECISIONS = ("auto", "float32", "tf32", "float16", "bfloat16")
PRECISION = Setting(
    "precision", choice(*PRECISIONS), "auto", "NAME",
    "precision of the encoder; auto is tf32 on a CUDA device and float32 on a CPU",
)  # fmt: skip
MAX_THREADS = 256
THREADS = Setting("threads", whole(1, MAX_THREADS), 1, "N", "CPU threads of each model process")
QUEUE_DELAY_MS = Setting(
    "queue_delay_ms", whole(0, 1000), None, "MS", "batching delay, in milliseconds",
    unset="40, or a quarter of the chunk if that is less", page="serving.md#batching-delay",
)  # fmt: skip
HTTP_PORT = Setting("http_port", whole(0, 65535), 8000, "PORT", "HTTP port; 0 for any free port")
GRPC_PORT = Setting("grpc_port", whole(0, 65535), 8001, "PORT", "gRPC port; 0 for any free port")
METRICS_PORT = Setting("metrics_port", whole(0, 65535), 8002, "PORT", "metrics port; 0 for any free port")
LISTEN_ON_ALL_INTERFACES = Setting(
    "listen_on_all_interfaces",
    switch(),
    False,
    None,
    "listen on all interfaces instead of 127.0.0.1, without encryption",
)
DRAIN_SECONDS = Setting(
    "drain_seconds", whole(1), 8, "S", "time for live streams to end after SIGTERM, in seconds",
    page="operations.md#stopping",
)  # fmt: skip
MODEL_REPOSITORY = Setting(
    "model_repository", text("a directory"), None, "DIR", "directory of the Triton models", unset="the bundled one"
)
VERBOSE = Setting("verbose", switch(), False, None, "print Triton's complete log, not only its warnings and errors")
LOG_FORMAT = Setting("log_format", choice(*FORMATS), "text", "NAME", "format of the log", page="operations.md#logs")
LOG_LEVEL = Setting(
    "log_level", choice(*LEVELS), "info", "NAME", "least severe lines in the log", page="operations.md#logs"
)
RESTART = Setting(
    "restart", switch(), False, None, "start the server again after a crash", page="operations.md#restart-after-a-crash"
)
GATEWAY = Setting(
    "gateway", switch(), False, None, "start a gateway for the clients of NVIDIA Riva and OpenAI beside the server",
    page="gateway.md",
)  # fmt: skip

SERVE_SETTINGS = (
    MODEL, CONTEXT, MAX_STREAMS, IDLE_SECONDS, DEVICE, PRECISION, THREADS, QUEUE_DELAY_MS, *DECODING_SETTINGS,
    HTTP_PORT, GRPC_PORT, METRICS_PORT, LISTEN_ON_ALL_INTERFACES, DRAIN_SECONDS, RESTART, GATEWAY, MODEL_REPOSITORY,
    LOG_FORMAT, LOG_LEVEL, VERBOSE,
)  # fmt: skip
"""Flags of `penstock serve`, in the order of its help."""

IMAGE_SETTINGS = (HTTP_PORT, GRPC_PORT, METRICS_PORT, LISTEN_ON_ALL_INTERFACES, MODEL_REPOSITORY, GATEWAY)
"""Fixed by the images, where the gateway is another one: `compose.yaml` does not pass them on."""

OTHER_VARIABLES = ("PENSTOCK_CACHE", "PENSTOCK_TRITONSERVER", "PENSTOCK_RUNTIME_DIR")
"""Variables without a flag, read by model/resolve.py, triton_install.py and here."""


@dataclass(frozen=True)
class Settings:
    """Configuration of a model process, from the variables of the settings and PENSTOCK_RUNTIME_DIR."""

    checkpoint: "Checkpoint"
    context: AttentionContext
    max_streams: int
    idle_limit_s: float
    runtime_directory: Path
    device: str
    precision: str
    threads: int
    decoding: DecodingConfig

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Reads the variables; SettingError names the one that is missing or wrong."""
        from penstock.model.bundle import Checkpoint

        model = MODEL.read(environment)
        if not model:
            raise SettingError("PENSTOCK_MODEL is not set; accepted: a bundle made by `penstock import`")
        checkpoint = Checkpoint(model)
        # The model processes of a server have the same parent, so its id gives them a common directory.
        runtime = environment.get("PENSTOCK_RUNTIME_DIR") or f"{tempfile.gettempdir()}/penstock-{os.getppid()}"
        return cls(
            checkpoint=checkpoint,
            context=select_served_context(checkpoint, CONTEXT.read(environment)),
            max_streams=MAX_STREAMS.read(environment),
            idle_limit_s=IDLE_SECONDS.read(environment),
            runtime_directory=Path(runtime),
            device=DEVICE.read(environment) or _best_device(),
            precision=PRECISION.read(environment),
            threads=THREADS.read(environment),
            decoding=DecodingConfig(**{setting.name: setting.read(environment) for setting in DECODING_SETTINGS}),
        )

    @property
    def slots(self) -> int:
        """Slots of every stage's state arrays."""
        from penstock.pipeline.slots.table import slot_count

        return slot_count(self.max_streams)

    def open_board(self) -> "DrainBoard":
        """The board through which the launcher drains the streams."""
        from penstock.pipeline.slots.drain import DrainBoard

        return DrainBoard(self.slots, self.runtime_directory / DRAIN_BOARD)

    def open_latency(self) -> "LatencyTable":
        """The latencies that the decoder shares with the features model."""
        from penstock.pipeline.slots.latency import LatencyTable

        return LatencyTable(self.slots, self.runtime_directory / "latency")

    def open_ledger(self) -> "SlotLedger":
        """The ledger that this server's model processes share."""
        from penstock.pipeline.slots.ledger import SlotLedger

        return SlotLedger(self.slots, self.runtime_directory / "slots")


def select_served_context(checkpoint: "Checkpoint", wanted: AttentionContext | None) -> AttentionContext:
    """Like `EncoderConfig.select_context`; CheckpointError for a checkpoint with another sample rate."""
    rate_hz = checkpoint.config.features.sample_rate_hz
    if rate_hz != SAMPLE_RATE_HZ:
        raise CheckpointError(
            f"{checkpoint.directory}: a checkpoint for audio at {rate_hz} Hz; accepted by a server: {SAMPLE_RATE_HZ} Hz"
        )
    return checkpoint.config.encoder.select_context(wanted)


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
