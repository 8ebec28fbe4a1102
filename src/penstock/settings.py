"""What a member process of the server is told by its environment. One home for the variables' names and defaults."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext
from penstock.errors import CheckpointError, PenstockError
from penstock.slot_ledger import SlotLedger
from penstock.stream_options import DecodingConfig
from penstock.streams import slot_count

DEFAULT_MAX_STREAMS = 64
MOST_STREAMS = 4000
"""Below `max_candidate_sequences` of the members: a sequence beyond that is not refused, it waits without a word."""


def parse_context(text: str) -> AttentionContext:
    """Reads "70,6"."""
    try:
        left, right = (int(part) for part in text.strip("[] ").split(","))
    except ValueError:
        raise CheckpointError(f"context {text!r}: expected LEFT,RIGHT in encoder frames, for example 70,6") from None
    return AttentionContext(left, right)


def check_max_streams(max_streams: int) -> int:
    """The number, if a server can have so many streams; else PenstockError."""
    if max_streams > MOST_STREAMS:
        raise PenstockError(f"{max_streams} streams are not supported; supported: up to {MOST_STREAMS} a server")
    return max_streams


@dataclass(frozen=True)
class Settings:
    """PENSTOCK_MODEL, _CONTEXT, _MAX_STREAMS, _IDLE_SECONDS, _RUNTIME_DIR, _DEVICE, _THREADS, and the decoder's _LM,
    _LM_WEIGHT, _BEAM_SIZE, _CUDA_GRAPHS, _KERNELS.
    """

    checkpoint: Checkpoint
    context: AttentionContext
    max_streams: int
    idle_limit_s: float | None
    """None: as long as Triton itself waits."""
    runtime_directory: Path
    device: str
    threads: int
    decoding: DecodingConfig

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Reads the variables; PenstockError names the one that is missing or wrong."""
        model = environment.get("PENSTOCK_MODEL")
        if not model:
            raise PenstockError("PENSTOCK_MODEL is not set: it must name a bundle made by `penstock import`")
        checkpoint = Checkpoint(model)
        context = environment.get("PENSTOCK_CONTEXT")
        # The members of one server are children of one process, which a runtime directory may be named after.
        runtime = environment.get("PENSTOCK_RUNTIME_DIR") or f"{tempfile.gettempdir()}/penstock-{os.getppid()}"
        idle = environment.get("PENSTOCK_IDLE_SECONDS")
        return cls(
            checkpoint=checkpoint,
            context=checkpoint.config.encoder.select_context(parse_context(context) if context else None),
            max_streams=check_max_streams(_positive(environment, "PENSTOCK_MAX_STREAMS", DEFAULT_MAX_STREAMS, int)),
            idle_limit_s=_positive(environment, "PENSTOCK_IDLE_SECONDS", 0.0, float) if idle else None,
            runtime_directory=Path(runtime),
            device=environment.get("PENSTOCK_DEVICE") or _best_device(),
            threads=_positive(environment, "PENSTOCK_THREADS", 1, int),
            decoding=DecodingConfig(
                lm=environment.get("PENSTOCK_LM") or None,
                lm_weight=_positive(environment, "PENSTOCK_LM_WEIGHT", 0.0, float),
                beam_size=_positive(environment, "PENSTOCK_BEAM_SIZE", DecodingConfig.beam_size, int),
                cuda_graphs=environment.get("PENSTOCK_CUDA_GRAPHS") or DecodingConfig.cuda_graphs,
                kernels=environment.get("PENSTOCK_KERNELS") or DecodingConfig.kernels,
            ),
        )

    @property
    def slots(self) -> int:
        """Slots of every stage's state arrays."""
        return slot_count(self.max_streams)

    def open_ledger(self) -> SlotLedger:
        """The ledger that this server's members share."""
        return SlotLedger(self.slots, self.runtime_directory / "slots")


def _best_device() -> str:
    import torch  # here, so that the launcher can check a context without waiting for it

    return "cuda" if torch.cuda.is_available() else "cpu"


def _positive(environment: Mapping[str, str], name: str, default, kind: type):
    text = environment.get(name)
    if not text:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not value > 0:  # NaN is refused too
        raise PenstockError(f"{name} is {text!r}, expected a positive number")
    return value
