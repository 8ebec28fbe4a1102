"""The options of a recognizer's decoder. A field of `DecodingConfig` is the only declaration of its option.

Flags, environment variables, `compose.yaml` and the tables in docs/ follow from it (`scripts/declared_tables.py`).
Does not import torch.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from penstock.errors import SettingError
from penstock_common.declaration import About, Options
from penstock_common.options import (
    ACCEPTED_NUMBERS,
    ALSD,
    BEAM_DECODERS,
    DECODERS,
    ENDPOINTS,
    GREEDY,
    LANGUAGES,
    LM_DECODERS,
    TRANSDUCER_DECODERS,
    WFST,
    BeamSize,
    EndpointLongest,
    EndpointNoSpeech,
    EndpointSilence,
    EndpointState,
    EndpointTokens,
    IlmAlpha,
    IlmBeta,
    LmWeight,
    Numbers,
)

# The names of penstock.graphs.select and penstock.kernels.capability, which import torch.
CudaGraphs = Literal["auto", "full_graph", "no_while_loops", "no_graphs"]
Kernels = Literal["auto", "torch", "fused"]
_FACTORIZED = "factorized.md#options"
_CHECKPOINTS = "the checkpoint's"


class DecodingConfig(Options):
    """Options that all streams share, because they share batches and captured searches, and defaults of streams.

    SettingError names a wrong value and the accepted ones.
    """

    error: ClassVar[type[Exception]] = SettingError

    lm: Annotated[
        str | None,
        Field(min_length=1),
        About(
            "FILE",
            unset="none",
            page="language_model.md",
            decoders=LM_DECODERS,
            accepted="a file: ARPA, or the output of `penstock lm compile`",
        ),
    ] = Field(default=None, description="n-gram language model")
    lm_weight: Annotated[LmWeight, About("W", decoders=LM_DECODERS)] = Field(
        default=0.0, description="default weight of the language model"
    )
    beam_size: Annotated[BeamSize, About("K", page="beam_search.md#settings", decoders=BEAM_DECODERS)] = Field(
        default=4, description="maximum hypotheses per stream"
    )
    max_symbols: Annotated[
        int | None, Field(ge=1, le=50), About("N", unset=f"{_CHECKPOINTS}, else 10", decoders=(GREEDY, ALSD))
    ] = Field(default=None, description="maximum labels per frame in greedy search and ALSD++")
    ilm_alpha: Annotated[
        IlmAlpha | None, About("W", unset=_CHECKPOINTS, page=_FACTORIZED, decoders=TRANSDUCER_DECODERS)
    ] = Field(default=None, description="internal language model: default weight inside the softmax over labels")
    ilm_beta: Annotated[
        IlmBeta | None, About("W", unset=_CHECKPOINTS, page=_FACTORIZED, decoders=TRANSDUCER_DECODERS)
    ] = Field(default=None, description="internal language model: default weight of the score added to each label")
    graph: Annotated[
        str | None,
        Field(min_length=1),
        About("FILE", unset="none", decoders=(WFST,), accepted="a file: the output of `penstock graph build`"),
    ] = Field(default=None, description="decoding graph of a CTC head")
    wfst_lm_weight: Annotated[LmWeight, About("W", decoders=(WFST,))] = Field(
        default=1 / 3, description="WFST: default weight of the graph"
    )
    wfst_beam: Annotated[float, Field(ge=1, le=50), About("NATS", decoders=(WFST,))] = Field(
        default=10.0, description="WFST: prune tokens this far below the best one"
    )
    wfst_max_active: Annotated[int, Field(ge=64, le=16_384), About("N", decoders=(WFST,))] = Field(
        default=2048, description="WFST: maximum tokens per stream"
    )
    language: Annotated[
        str | None,
        Field(min_length=1),
        About(
            "NAME",
            unset="auto if the model has it, else its first",
            page="models.md#languages",
            decoders=DECODERS,
            accepted=LANGUAGES,
        ),
    ] = Field(default=None, description="default language of streams, for models with language prompts")
    numbers: Annotated[
        Numbers, About("NAME", page="transcription.md#numbers", decoders=DECODERS, accepted=ACCEPTED_NUMBERS)
    ] = Field(default="words", description="default of spoken numbers in final results")
    endpoint_silence_ms: Annotated[EndpointSilence, About("MS", page="endpointing.md", decoders=DECODERS)] = Field(
        default=0, description="default endpoint: silence after a word that ends a segment, in ms"
    )
    endpoint_no_speech_ms: Annotated[EndpointNoSpeech, About("MS", page="endpointing.md", decoders=DECODERS)] = Field(
        default=0, description="default endpoint: duration of a segment without words, in ms"
    )
    endpoint_longest_s: Annotated[EndpointLongest, About("S", page="endpointing.md", decoders=DECODERS)] = Field(
        default=0, description="default endpoint: duration after which any short pause ends a segment, in s"
    )
    endpoint_state: Annotated[
        EndpointState | None,
        About(
            "NAME",
            unset="carry if the model writes punctuation and capitals, else reset",
            page="endpointing.md#reset-or-carry",
            decoders=DECODERS,
        ),
    ] = Field(default=None, description="default at an endpoint: the decoder starts anew, or goes on")
    endpoint_tokens: Annotated[
        EndpointTokens | None,
        About("NAME", unset="on if the model has any", page="endpointing.md#end-tokens", decoders=DECODERS),
    ] = Field(default=None, description="default endpoint: an end token of the model, such as `<EOU>`")
    phrase_memory_mib: Annotated[int, Field(ge=16, le=16_384), About("MIB", page="boosting.md#memory")] = Field(
        default=512, description="memory for the boosted phrases of all streams on the decoder's device, in MiB"
    )
    cuda_graphs: Annotated[CudaGraphs, About("MODE", page="internals/cuda_graphs.md")] = Field(
        default="auto", description="CUDA graphs of encoder and decoder"
    )
    capture_beams: Annotated[bool, About(page="internals/cuda_graphs.md")] = Field(
        default=False, description="also capture CUDA graphs of beam searches at startup"
    )
    kernels: Annotated[Kernels, About("NAME", page="internals/kernels.md")] = Field(
        default="auto", description="implementation of the decoders' steps, and of attention in 16 bit"
    )

    @model_validator(mode="after")
    def _check_language_model(self) -> Self:
        if self.lm_weight and not self.lm:
            raise ValueError(f"lm_weight is {self.lm_weight:g}, but there is no language model; accepted: 0")
        return self


ENDPOINT_OPTIONS = tuple(DecodingConfig.option(name) for name in (*ENDPOINTS, "endpoint_state", "endpoint_tokens"))
"""Also options of a stream, under the same names."""

DEFAULT_DECODING = DecodingConfig()
