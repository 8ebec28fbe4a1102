"""What a server can be told. One home for the settings' names, defaults and limits: each is an environment variable,
most are flags of `penstock serve` too. `Settings` is what a member process of the server reads of them.
"""

import argparse
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import decoding_config as limits
from penstock.config import AttentionContext
from penstock.decoding.beam_sizes import LARGEST_BEAM
from penstock.decoding_config import DecodingConfig
from penstock.errors import CheckpointError, PenstockError

# What members alone need is imported where they ask for it: a launcher or a health check starts without numpy or torch.
if TYPE_CHECKING:
    from penstock.checkpoint import Checkpoint
    from penstock.slot_ledger import SlotLedger

DEFAULT_MAX_STREAMS = 64
MOST_STREAMS = 4000
"""Below `max_candidate_sequences` of the members: a sequence beyond that is not refused, it waits without a word."""

SAMPLE_RATE_HZ = 16_000
"""Of the audio that a server's clients send."""


def parse_context(text: str) -> AttentionContext:
    """Reads "70,6"."""
    try:
        left, right = (int(part) for part in text.strip("[] ").split(","))
    except ValueError:
        raise CheckpointError(f"context {text!r}: expected LEFT,RIGHT in encoder frames, for example 70,6") from None
    return AttentionContext(left, right)


@dataclass(frozen=True)
class Setting:
    """One thing that a server can be told."""

    name: str
    """In Python: `max_streams`."""
    parse: Callable[[str], Any]
    """Raises ValueError where the text is not accepted."""
    accepted: str
    default: Any = None

    @property
    def variable(self) -> str:
        """Its environment variable: PENSTOCK_MAX_STREAMS."""
        return f"PENSTOCK_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """Its flag of `penstock serve`: --max-streams."""
        return f"--{self.name.replace('_', '-')}"

    def source(self, given: str | None) -> str:
        """What a user calls it: the flag if that was given, else the variable."""
        return self.variable if given is None else self.flag

    def read(self, environment: Mapping[str, str] = os.environ, given: str | None = None) -> Any:
        """The value: of the flag if `given`, else of the variable, else the default. An empty variable is as none.

        PenstockError names the flag or variable that is wrong and says what is accepted.
        """
        text = (environment.get(self.variable) or None) if given is None else given
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except (ValueError, CheckpointError):
            raise PenstockError(f"{self.source(given)} is {text!r}; accepted: {self.accepted}") from None


def given_text(args: argparse.Namespace, setting: Setting) -> str | None:
    """The text of a flag; None where it is not given."""
    value = getattr(args, setting.name)
    return str(value) if isinstance(value, bool) else value


def _text(name: str, accepted: str) -> Setting:
    def parse(text: str) -> str:
        if not text:
            raise ValueError
        return text

    return Setting(name, parse, accepted)


def _whole(name: str, low: int, high: float, default: int | None) -> Setting:
    def parse(text: str) -> int:
        if not low <= int(text) <= high:
            raise ValueError
        return int(text)

    accepted = f"from {low} on" if math.isinf(high) else f"from {low} to {high}"
    return Setting(name, parse, f"whole numbers {accepted}", default)


def _choice(name: str, values: tuple[str, ...], default: str) -> Setting:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError
        return text

    return Setting(name, parse, ", ".join(values), default)


def _switch(name: str, default: bool = False) -> Setting:
    meanings = {"1": True, "true": True, "0": False, "false": False}

    def parse(text: str) -> bool:
        try:
            return meanings[text.lower()]
        except KeyError:
            raise ValueError from None

    return Setting(name, parse, ", ".join(meanings), default)


LONGEST_IDLE_S = 60.0
"""Triton forgets a sequence a little later (`max_sequence_idle_microseconds` of the members): the stream table has to
be quicker, whose answer tells the client what happened."""


def _idle_seconds(text: str) -> float:
    if not 0 < float(text) <= LONGEST_IDLE_S:  # NaN is refused too
        raise ValueError
    return float(text)


def _real(name: str, high: float, default: float) -> Setting:
    def parse(text: str) -> float:
        if not 0 <= float(text) <= high:  # NaN is refused too
            raise ValueError
        return float(text)

    return Setting(name, parse, f"numbers from 0 to {high:g}", default)


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise ValueError
    return text


MODEL = _text("model", "a bundle directory, a .nemo file or a hub id")
CONTEXT = Setting("context", parse_context, "LEFT,RIGHT in encoder frames, for example 70,6")
MAX_STREAMS = _whole("max_streams", 1, MOST_STREAMS, DEFAULT_MAX_STREAMS)
IDLE_SECONDS = Setting("idle_seconds", _idle_seconds, f"numbers above 0, up to {LONGEST_IDLE_S:g}", 30.0)
DEVICE = Setting("device", _device, "cpu, cuda, cuda:NUMBER")
THREADS = _whole("threads", 1, math.inf, 1)
QUEUE_DELAY_MS = _whole("queue_delay_ms", 0, 1000, None)
"""None: as config.pbtxt of the feature member says."""
LM = _text("lm", "a file: ARPA, or what `penstock lm compile` wrote")
LM_WEIGHT = _real("lm_weight", limits.LARGEST_LM_WEIGHT, DecodingConfig.lm_weight)
LM_FUSION = _choice("lm_fusion", limits.LM_FUSIONS, DecodingConfig.lm_fusion)
BEAM_SIZE = _whole("beam_size", 1, LARGEST_BEAM, DecodingConfig.beam_size)
LENGTH_NORMALISATION = _switch("length_normalisation", DecodingConfig.length_normalisation)
AES_EXPANSIONS = _whole("aes_expansions", 1, limits.LARGEST_AES_EXPANSIONS, DecodingConfig.aes_expansions)
AES_MARGIN = _real("aes_margin", limits.LARGEST_AES_MARGIN, DecodingConfig.aes_margin)
AES_EXTRA_LABELS = _whole("aes_extra_labels", 0, limits.LARGEST_AES_EXTRA_LABELS, DecodingConfig.aes_extra_labels)
MAX_SYMBOLS = _whole("max_symbols", 1, limits.LARGEST_MAX_SYMBOLS, DecodingConfig.max_symbols)
PHRASE_MEMORY_MIB = _whole(
    "phrase_memory_mib",
    limits.LEAST_PHRASE_MEMORY_MIB,
    limits.LARGEST_PHRASE_MEMORY_MIB,
    DecodingConfig.phrase_memory_mib,
)
CUDA_GRAPHS = _choice("cuda_graphs", limits.CUDA_GRAPHS, DecodingConfig.cuda_graphs)
KERNELS = _choice("kernels", limits.KERNELS, DecodingConfig.kernels)
HTTP_PORT = _whole("http_port", 0, 65535, 8000)
GRPC_PORT = _whole("grpc_port", 0, 65535, 8001)
METRICS_PORT = _whole("metrics_port", 0, 65535, 8002)
LISTEN_ON_ALL_INTERFACES = _switch("listen_on_all_interfaces")
DRAIN_SECONDS = _whole("drain_seconds", 1, math.inf, 8)
MODEL_REPOSITORY = _text("model_repository", "the directory of the Triton models")
VERBOSE = _switch("verbose")

DECODING_SETTINGS = (
    LM, LM_WEIGHT, LM_FUSION, BEAM_SIZE, LENGTH_NORMALISATION, AES_EXPANSIONS, AES_MARGIN, AES_EXTRA_LABELS,
    MAX_SYMBOLS, PHRASE_MEMORY_MIB, CUDA_GRAPHS, KERNELS,
)  # fmt: skip
"""The fields of `DecodingConfig`, by their names."""

SERVE_SETTINGS = (
    MODEL, CONTEXT, MAX_STREAMS, IDLE_SECONDS, DEVICE, THREADS, QUEUE_DELAY_MS, *DECODING_SETTINGS, HTTP_PORT,
    GRPC_PORT, METRICS_PORT, LISTEN_ON_ALL_INTERFACES, DRAIN_SECONDS, MODEL_REPOSITORY, VERBOSE,
)  # fmt: skip
"""Flags of `penstock serve`, in the order of its help."""

OTHER_VARIABLES = ("PENSTOCK_CACHE", "PENSTOCK_TRITONSERVER", "PENSTOCK_RUNTIME_DIR")
"""Read where they are needed (model_source.py, triton_install.py, here); no flags."""


@dataclass(frozen=True)
class Settings:
    """What a member is told, by the variables of the settings above and by PENSTOCK_RUNTIME_DIR."""

    checkpoint: "Checkpoint"
    context: AttentionContext
    max_streams: int
    idle_limit_s: float
    runtime_directory: Path
    device: str
    threads: int
    decoding: DecodingConfig

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Reads the variables; PenstockError names the one that is missing or wrong."""
        from penstock.checkpoint import Checkpoint

        model = MODEL.read(environment)
        if not model:
            raise PenstockError("PENSTOCK_MODEL is not set: it must name a bundle made by `penstock import`")
        checkpoint = Checkpoint(model)
        # The members of one server are children of one process, which a runtime directory may be named after.
        runtime = environment.get("PENSTOCK_RUNTIME_DIR") or f"{tempfile.gettempdir()}/penstock-{os.getppid()}"
        return cls(
            checkpoint=checkpoint,
            context=select_served_context(checkpoint, CONTEXT.read(environment)),
            max_streams=MAX_STREAMS.read(environment),
            idle_limit_s=IDLE_SECONDS.read(environment),
            runtime_directory=Path(runtime),
            device=DEVICE.read(environment) or _best_device(),
            threads=THREADS.read(environment),
            decoding=DecodingConfig(**{setting.name: setting.read(environment) for setting in DECODING_SETTINGS}),
        )

    @property
    def slots(self) -> int:
        """Slots of every stage's state arrays."""
        from penstock.streams import slot_count

        return slot_count(self.max_streams)

    def open_ledger(self) -> "SlotLedger":
        """The ledger that this server's members share."""
        from penstock.slot_ledger import SlotLedger

        return SlotLedger(self.slots, self.runtime_directory / "slots")


def select_served_context(checkpoint: "Checkpoint", wanted: AttentionContext | None) -> AttentionContext:
    """As `EncoderConfig.select_context`; CheckpointError where the checkpoint does not hear what clients send."""
    rate_hz = checkpoint.config.features.sample_rate_hz
    if rate_hz != SAMPLE_RATE_HZ:
        raise CheckpointError(
            f"{checkpoint.directory}: a checkpoint for audio at {rate_hz} Hz; accepted by a server, whose clients send "
            f"{SAMPLE_RATE_HZ} Hz: {SAMPLE_RATE_HZ}"
        )
    return checkpoint.config.encoder.select_context(wanted)


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
