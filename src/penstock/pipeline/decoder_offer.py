"""Which decoders a model and the settings offer to streams, and what the others need. Does not import torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.errors import SettingError, shown
from penstock.model.config import ModelConfig
from penstock.pipeline.decoding_config import (
    CTC,
    CTC_DECODERS,
    DECODERS,
    GREEDY,
    TRANSDUCER_DECODERS,
    WFST,
    DecodingConfig,
)


@dataclass(frozen=True)
class DecoderOffer:
    """The decoders that a stream may choose from."""

    needs: Mapping[str, str]
    """What each decoder that is not offered needs, by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The offered decoders, in the order of `DECODERS`."""
        return tuple(name for name in DECODERS if name not in self.needs)

    @property
    def default(self) -> str:
        """The decoder of a stream that names none: greedy search, of the transducer if there is one."""
        return GREEDY if GREEDY in self.names else CTC

    def problem_with(self, name: object) -> str | None:
        """Why a stream cannot have decoder `name`, and which it can have; None if it can."""
        if name in self.names:
            return None
        needed = self.needs.get(name) if isinstance(name, str) else None
        reason = f"is not offered: it needs {needed}" if needed else "is not known"
        return f"decoder {shown(name)} {reason}; offered: {', '.join(self.names)}"

    def alternatives(self, names: Iterable[str]) -> str:
        """Those of `names` that are offered, for a message: "alsd, aes or ctc_beam"."""
        *others, last = [name for name in names if name in self.names] or ["another model's"]
        return f"{', '.join(others)} or {last}" if others else last


def offer_decoders(model: ModelConfig, decoding: DecodingConfig) -> DecoderOffer:
    """The decoders of a model with these settings; SettingError for a graph that no decoder of the model can use."""
    needs: dict[str, str] = {}
    if model.transducer is None:
        needs |= dict.fromkeys(TRANSDUCER_DECODERS, "a model with a transducer")
    if model.ctc is None:
        if decoding.graph:
            raise SettingError("graph is given, but the model has no CTC head; accepted: none")
        needs |= dict.fromkeys(CTC_DECODERS, "a model with a CTC head")
    elif not decoding.graph:
        needs[WFST] = "a decoding graph (--graph)"
    return DecoderOffer(needs)
