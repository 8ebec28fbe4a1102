"""Builds an ARPA model, whose words are a recognizer's tokens, from sentences of labels."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from penstock.errors import CorpusError, SettingError
from penstock.scoring.ngram.arpa import BEGIN, END, LOG10_ZERO, UNKNOWN, Arpa, ArpaSection
from penstock.scoring.ngram.estimation.kneser_ney import Discounts, OrderCounts, OrderEstimate, count_ngrams, estimate
from penstock.scoring.ngram.io import TokenNames

MAX_BUILD_ORDER = 10


class BuiltLm(NamedTuple):
    """A model, and the discounts of each order."""

    arpa: Arpa
    discounts: list[Discounts]


def build_lm(sentences: Iterable[Sequence[int]], names: TokenNames, order: int, prune: Sequence[int] = ()) -> BuiltLm:
    """Estimates interpolated modified Kneser-Ney of `order` over the tokens `names`.

    Every token that a text can contain gets a probability, seen or not, so the probabilities of all labels and `</s>`
    sum to one after every context. The tokenizer's unknown token becomes `<unk>`. prune: for each order from 1 on the
    count up to which n-grams are left out; the last one holds for higher orders. SettingError for numbers out of range,
    CorpusError without a sentence.
    """
    thresholds = _thresholds(order, prune)
    size = len(names.pieces)
    begin, end = size, size + 1
    words = [UNKNOWN if label == names.unknown_label else piece for label, piece in enumerate(names.pieces)]
    is_possible = np.array([label not in names.control_labels for label in range(size)] + [False, True])
    orders = count_ngrams(sentences, order, size + 2, begin, end)
    if not orders[0].counts[end]:
        raise CorpusError("there is no text to build a language model from")
    estimates = estimate(orders, thresholds, begin, is_possible)
    estimates[0] = estimates[0]._replace(is_kept=is_possible | (np.arange(size + 2) == begin))
    arpa = Arpa([*words, BEGIN, END], _sections(orders, estimates))
    return BuiltLm(arpa, [each.discounts for each in estimates])


def _thresholds(order: int, prune: Sequence[int]) -> list[int]:
    if not 1 <= order <= MAX_BUILD_ORDER:
        raise SettingError(f"order {order}: expected 1 to {MAX_BUILD_ORDER}")
    given = list(prune) or [0]
    if len(given) > order:
        raise SettingError(f"{len(given)} pruning counts for order {order}")
    if given[0] != 0:
        raise SettingError(f"the first pruning count is {given[0]}: single tokens are never pruned, expected 0")
    if any(later < earlier for earlier, later in pairwise(given)):
        raise SettingError(f"pruning counts {' '.join(map(str, given))}: a higher order must not have a lower count")
    return given + given[-1:] * (order - len(given))


def _sections(orders: list[OrderCounts], estimates: list[OrderEstimate]) -> list[ArpaSection]:
    sections = []
    ngrams = np.empty((1, 0), np.int32)  # all words of every n-gram of the order below
    for order, each in zip(orders, estimates, strict=True):
        ngrams = np.concatenate([ngrams[order.prefixes], order.words[:, None].astype(np.int32)], axis=1)
        kept = each.is_kept
        sections.append(
            ArpaSection(
                words=ngrams[kept],
                log10_probabilities=_log10(each.probabilities[kept]),
                log10_backoffs=_log10(each.backoffs[kept]),
                lines=np.zeros(np.count_nonzero(kept), np.int64),
            )
        )
    return sections


def _log10(values: np.ndarray) -> np.ndarray:
    """float32, never above 0; a context without back-off weight gets `LOG10_ZERO`."""
    with np.errstate(divide="ignore"):
        return np.clip(np.log10(values), LOG10_ZERO, 0.0).astype(np.float32)
