"""kaldi-decoder over the same graphs: a search of other authors, in C++."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.helpers.decoding_graphs import Arc


def kaldi_fst(arcs: Sequence[Arc], finals: Mapping[int, float], lm_weight: float) -> Any:
    """A StdVectorFst of the arcs with scaled weights: labels counted from 1, 0 is epsilon."""
    kaldifst = pytest.importorskip("kaldifst")
    fst = kaldifst.StdVectorFst()
    for _ in range(1 + max(max(arc.source, arc.target) for arc in arcs)):
        fst.add_state()
    fst.start = 0
    scale = np.float32(lm_weight)
    for source, label, word, weight, target in arcs:
        cost = float(scale * np.float32(weight))
        fst.add_arc(source, kaldifst.StdArc(0 if label is None else label + 1, word, cost, target))
    for state, weight in finals.items():
        fst.set_final(state, float(scale * np.float32(weight)))
    return fst


def kaldi_search(fst: Any, log_probs: np.ndarray, beam: float) -> tuple[list[int], float]:
    """Words and cost of the best path; all tokens within the beam are followed."""
    kaldi_decoder = pytest.importorskip("kaldi_decoder")
    options = kaldi_decoder.FasterDecoderOptions(beam=beam, max_active=2**31 - 1, min_active=0)
    decoder = kaldi_decoder.FasterDecoder(fst, options)
    decoder.decode(kaldi_decoder.DecodableCtc(np.ascontiguousarray(log_probs, np.float32)))
    found, path = decoder.get_best_path()
    assert found
    _, _, words, weight = pytest.importorskip("kaldifst").get_linear_symbol_sequence(path)
    return words, weight.value1 + weight.value2
