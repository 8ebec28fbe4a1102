"""What a recogniser's decoder offers its streams, checked by name. One home for these settings' defaults and limits.

Knows no tensors, so that a launcher can check what it hands on.
"""

from dataclasses import dataclass

from penstock.decoding.beam_sizes import LARGEST_BEAM, AesLimits
from penstock.errors import PenstockError

# Those of penstock.cuda_graphs and penstock.kernels.capability, which a launcher cannot ask without importing torch.
CUDA_GRAPHS = ("auto", "eager", "staged", "while")
KERNELS = ("auto", "torch", "fused")
LM_FUSIONS = ("eq2-early", "eq2-late", "eq3-early", "eq3-late")
"""The four strategies of the beam paper: what a language model does to the blank, and when a beam's labels are pruned.
See `penstock.fusion.blank_scoring`."""
LARGEST_LM_WEIGHT = 10.0
LARGEST_MAX_SYMBOLS = 50
LARGEST_AES_EXPANSIONS, LARGEST_AES_MARGIN, LARGEST_AES_EXTRA_LABELS = 10, 100.0, 32
LEAST_PHRASE_MEMORY_MIB, LARGEST_PHRASE_MEMORY_MIB = 16, 16_384


@dataclass(frozen=True)
class DecodingConfig:
    """The same for all streams: they share batches, and searches that were captured once. PenstockError names what
    cannot be.
    """

    lm: str | None = None
    """ARPA file, or what `penstock lm compile` wrote, over the model's tokens."""
    lm_weight: float = 0.0
    """Of streams that name none."""
    beam_size: int = 4
    """Hypotheses that every stream has room for; a stream may ask for fewer."""
    cuda_graphs: str = "auto"
    """Driver of the searches: one of `CUDA_GRAPHS`."""
    kernels: str = "torch"
    """Who computes joint, predictor and look-ups: one of `KERNELS`."""
    lm_fusion: str = "eq3-late"
    """How the language model enters beam search: one of `LM_FUSIONS`."""
    max_symbols: int | None = None
    """Labels at one frame before greedy search and ALSD++ force time on; None: as the checkpoint says."""
    aes_expansions: int = AesLimits().expansions_per_frame
    """This and the next two: see `AesLimits`."""
    aes_margin: float = AesLimits().margin
    aes_extra_labels: int = AesLimits().extra_labels
    length_normalisation: bool = True
    """Whether beams rank hypotheses by score / (labels + 1), or by the score."""
    phrase_memory_mib: int = 512
    """For the boosted phrases of all streams, on the decoder's device; see docs/boosting.md, Memory."""

    def __post_init__(self) -> None:
        _check_choice("CUDA graphs", self.cuda_graphs, CUDA_GRAPHS)
        _check_choice("kernels", self.kernels, KERNELS)
        _check_choice("language model fusion", self.lm_fusion, LM_FUSIONS)
        _check_choice("length normalisation", self.length_normalisation, (True, False))
        _check_whole("beam size", self.beam_size, 1, LARGEST_BEAM)
        if self.max_symbols is not None:
            _check_whole("max_symbols", self.max_symbols, 1, LARGEST_MAX_SYMBOLS)
        _check_whole("AES++ expansions", self.aes_expansions, 1, LARGEST_AES_EXPANSIONS)
        _check_real("AES++ margin", self.aes_margin, LARGEST_AES_MARGIN)
        _check_whole("AES++ extra labels", self.aes_extra_labels, 0, LARGEST_AES_EXTRA_LABELS)
        _check_whole("phrase memory", self.phrase_memory_mib, LEAST_PHRASE_MEMORY_MIB, LARGEST_PHRASE_MEMORY_MIB)
        _check_real("language model weight", self.lm_weight, LARGEST_LM_WEIGHT)
        if self.lm_weight and not self.lm:
            raise PenstockError(f"language model weight {self.lm_weight:g} without a language model")


def _check_choice(what: str, value: object, accepted: tuple) -> None:
    if type(value) is not type(accepted[0]) or value not in accepted:
        raise PenstockError(f"{what} {value!r} is not supported; supported: {', '.join(map(str, accepted))}")


def _check_whole(what: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:  # a bool is no number
        raise PenstockError(f"{what} {value!r} is not supported; supported: whole numbers from {low} to {high}")


def _check_real(what: str, value: object, high: float) -> None:
    if type(value) not in (int, float) or not 0 <= value <= high:  # NaN is refused too
        raise PenstockError(f"{what} {value!r} is not supported; supported: numbers from 0 to {high:g}")


DEFAULT_DECODING = DecodingConfig()
