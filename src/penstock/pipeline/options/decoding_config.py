"""The options of a recognizer's decoder. A field of `DecodingConfig` is the only declaration of its option.

Flags, environment variables, `compose.yaml` and the tables in docs/ follow from it (`scripts/settings_tables.py`).
Does not import torch.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from penstock.decoding.beam.sizes import MAX_BEAM_SIZE, AesLimits
from penstock.decoding.wfst.sizes import WfstLimits
from penstock.endpointing.rules import ENDPOINT_STATES
from penstock.errors import SettingError
from penstock.model.config import MAX_ILM_ALPHA, MAX_ILM_BETA
from penstock.pipeline.options.setting import Setting, Values, choice, off_or, real, switch, text, whole

GREEDY, CTC, CTC_BEAM, WFST = "greedy", "ctc", "ctc_beam", "wfst"
TRANSDUCER_BEAMS = ("alsd", "aes")
BEAM_DECODERS = (*TRANSDUCER_BEAMS, CTC_BEAM)
"""Searches of `decoding/beam`, with a beam size per stream."""
TRANSDUCER_DECODERS = (GREEDY, *TRANSDUCER_BEAMS)
CTC_DECODERS = (CTC, CTC_BEAM, WFST)
DECODERS = (*TRANSDUCER_DECODERS, *CTC_DECODERS)
"""All searches; `decoder_offer` has those of a model."""
LM_DECODERS = (GREEDY, *BEAM_DECODERS)
"""Searches that add the scores of the n-gram language model."""
N_BEST_DECODERS = (*BEAM_DECODERS, WFST)
BOOSTED_DECODERS = (*LM_DECODERS, WFST)
MAX_LM_WEIGHT = 10.0
# The names of penstock.graphs.select and penstock.kernels.capability, which import torch.
CUDA_GRAPHS = ("auto", "full_graph", "no_while_loops", "no_graphs")
KERNELS = ("auto", "torch", "fused")
LM_FUSIONS = ("eq2-early", "eq2-late", "eq3-early", "eq3-late")
"""The four strategies of the beam search paper; see `penstock.scoring.fusion_rules`."""


def _option(values: Values, default: Any, metavar: str | None, help_text: str, **more: Any) -> Any:
    """A field and its `Setting`, which gets the field's name."""
    return field(default=default, metadata={"values": values, "metavar": metavar, "help": help_text, **more})


@dataclass(frozen=True)
class DecodingConfig:
    """Options that all streams share, because they share batches and captured searches.

    SettingError names a wrong value and the accepted ones.
    """

    lm: str | None = _option(
        text("a file: ARPA, or the output of `penstock lm compile`"), None, "FILE", "n-gram language model",
        page="language_model.md", decoders=LM_DECODERS,
    )  # fmt: skip
    lm_weight: float = _option(
        real(MAX_LM_WEIGHT), 0.0, "W", "default weight of the language model", decoders=LM_DECODERS
    )
    beam_size: int = _option(
        whole(1, MAX_BEAM_SIZE), 4, "K", "maximum hypotheses per stream", page="beam_search.md",
        decoders=BEAM_DECODERS,
    )  # fmt: skip
    lm_fusion: str = _option(
        choice(*LM_FUSIONS), "eq3-late", "NAME", "fusion strategy of the language model in beam search",
        page="beam_search.md#settings", decoders=TRANSDUCER_BEAMS,
    )  # fmt: skip
    length_normalisation: bool = _option(
        switch(), True, None, "rank hypotheses by score / (labels + 1), not by score",
        decoders=TRANSDUCER_BEAMS,
    )  # fmt: skip
    aes_expansions: int = _option(
        whole(1, 10), AesLimits().expansions_per_frame, "N", "AES++: maximum labels per hypothesis and frame",
        decoders=("aes",),
    )  # fmt: skip
    aes_margin: float = _option(
        real(100), AesLimits().margin, "NATS", "AES++: prune expansions this far below the best one",
        decoders=("aes",),
    )  # fmt: skip
    aes_extra_labels: int = _option(
        whole(0, 32), AesLimits().extra_labels, "N", "AES++: labels tried per hypothesis beyond the beam size",
        decoders=("aes",),
    )  # fmt: skip
    ctc_beam_label_bonus: float = _option(
        real(10), 1.5, "NATS", "CTC beam search: added to the language model's log-probability of each label",
        decoders=(CTC_BEAM,),
    )  # fmt: skip
    max_symbols: int | None = _option(
        whole(1, 50), None, "N", "maximum labels per frame in greedy search and ALSD++",
        unset="the checkpoint's, else 10", decoders=(GREEDY, "alsd"),
    )  # fmt: skip
    ilm_alpha: float | None = _option(
        real(MAX_ILM_ALPHA), None, "W", "internal language model: default weight inside the softmax over labels",
        unset="the checkpoint's", page="factorized.md#options", decoders=TRANSDUCER_DECODERS,
    )  # fmt: skip
    ilm_beta: float | None = _option(
        real(MAX_ILM_BETA), None, "W", "internal language model: default weight of the score added to each label",
        unset="the checkpoint's", page="factorized.md#options", decoders=TRANSDUCER_DECODERS,
    )  # fmt: skip
    graph: str | None = _option(
        text("a file: the output of `penstock graph build`"), None, "FILE", "decoding graph of a CTC head",
        decoders=(WFST,),
    )  # fmt: skip
    wfst_lm_weight: float = _option(
        real(MAX_LM_WEIGHT), 1 / 3, "W", "WFST: default weight of the graph", decoders=(WFST,)
    )
    wfst_beam: float = _option(
        real(50, low=1), 10.0, "NATS", "WFST: prune tokens this far below the best one", decoders=(WFST,)
    )
    wfst_max_active: int = _option(whole(64, 16_384), 2048, "N", "WFST: maximum tokens per stream", decoders=(WFST,))
    wfst_blank_penalty: float = _option(
        real(10), 0.0, "NATS", "WFST: subtracted from blank's log-probability", decoders=(WFST,)
    )
    wfst_lattice_beam: float = _option(
        real(50), WfstLimits().lattice_beam, "NATS", "WFST: keep alternatives this far below the best path",
        decoders=(WFST,),
    )  # fmt: skip
    wfst_skip_blank: float = _option(
        real(1, low=0.5), 1.0, "P", "WFST: skip frames in which blank's probability is above this", decoders=(WFST,)
    )
    language: str | None = _option(
        text("a language of the model (`penstock-client --info` names them)"), None, "NAME",
        "default language of streams, for models with language prompts", page="models.md#languages",
        unset="auto if the model has it, else its first", decoders=DECODERS,
    )  # fmt: skip
    endpoint_silence_ms: int = _option(
        off_or(whole(200, 10_000)), 0, "MS", "default endpoint: silence after a word that ends a segment, in ms",
        page="endpointing.md", decoders=DECODERS,
    )  # fmt: skip
    endpoint_no_speech_ms: int = _option(
        off_or(whole(200, 60_000)), 0, "MS", "default endpoint: duration of a segment without words, in ms",
        page="endpointing.md", decoders=DECODERS,
    )  # fmt: skip
    endpoint_longest_s: int = _option(
        off_or(whole(5, 120)), 0, "S", "default endpoint: duration after which any short pause ends a segment, in s",
        page="endpointing.md", decoders=DECODERS,
    )  # fmt: skip
    endpoint_state: str | None = _option(
        choice(*ENDPOINT_STATES), None, "NAME", "default at an endpoint: the decoder starts anew, or goes on",
        page="endpointing.md#reset-or-carry", unset="carry if the model writes punctuation and capitals, else reset",
        decoders=DECODERS,
    )  # fmt: skip
    phrase_memory_mib: int = _option(
        whole(16, 16_384), 512, "MIB", "memory for the boosted phrases of all streams on the decoder's device, in MiB",
        page="boosting.md#memory",
    )  # fmt: skip
    cuda_graphs: str = _option(
        choice(*CUDA_GRAPHS), "auto", "MODE", "CUDA graphs of encoder and decoder", page="internals/cuda_graphs.md"
    )
    capture_beams: bool = _option(
        switch(), False, None, "capture CUDA graphs of beam searches at a start, not of greedy search alone",
        page="internals/cuda_graphs.md",
    )  # fmt: skip
    kernels: str | None = _option(
        choice(*KERNELS), None, "NAME", "implementation of joint, predictor and lookups", page="internals/kernels.md",
        unset="torch, and auto for the decoder `wfst`",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for setting in DECODING_SETTINGS:
            setting.check(getattr(self, setting.name))
        if self.lm_weight and not self.lm:
            raise SettingError(f"lm_weight is {self.lm_weight:g}, but there is no language model; accepted: 0")


DECODING_SETTINGS = tuple(
    Setting(name=option.name, default=option.default, **option.metadata) for option in fields(DecodingConfig)
)
"""The fields of `DecodingConfig`, in their order."""

ENDPOINT_SETTINGS = tuple(setting for setting in DECODING_SETTINGS if setting.name.startswith("endpoint_"))
"""Also options of a stream, under the same names."""
ENDPOINT_RULES = tuple(setting for setting in ENDPOINT_SETTINGS if setting.name != "endpoint_state")
"""Those that end segments: the fields of `EndpointRules`."""

DEFAULT_DECODING = DecodingConfig()
