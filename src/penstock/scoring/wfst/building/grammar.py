"""The transducer G of a back-off language model: words in and out, #0 in where it backs off."""

import numpy as np

from penstock.scoring.ngram.arpa import Arpa, check_sentence_marks
from penstock.scoring.ngram.context_tree import ContextTree
from penstock.scoring.wfst.building.fst_arrays import EPSILON, FstArrays, join_arcs
from penstock.scoring.wfst.building.lexicon import Symbols

_LN10 = float(np.log(10.0))


def grammar_fst(arpa: Arpa, words: tuple[str, ...], symbols: Symbols) -> FstArrays:
    """G over `words` ("" first); n-grams with other words are left out. Sorted by input.

    A state is a context that has n-grams; one without any only backs off, so arcs into it lead to where that ends. The
    end of a sentence is a final weight. ArpaError for an n-gram that occurs twice and for a missing sentence mark.
    """
    check_sentence_marks(arpa)
    tree = ContextTree(arpa)
    ids = {word: number for number, word in enumerate(words) if word}
    word_ids = np.array([ids.get(word, 0) for word in arpa.words])
    final_costs = -_LN10 * tree.ending_log10_scores()  # nan: no n-gram ends here
    is_kept = word_ids[tree.arc_words] > 0
    sources, targets = tree.arc_sources[is_kept], tree.arc_targets[is_kept]
    costs = -_LN10 * tree.arc_log10_scores[is_kept]
    has_ngrams = np.zeros(len(final_costs), bool)
    has_ngrams[sources] = True
    has_ngrams |= ~np.isnan(final_costs) | (tree.suffixes == np.arange(len(final_costs)))  # the root stays
    skipped, skipped_costs = _skip(tree.suffixes, -_LN10 * tree.log10_backoffs, has_ngrams, arpa.order)
    contexts = np.flatnonzero(has_ngrams)
    number = np.cumsum(has_ngrams) - 1
    backing_off = contexts[tree.suffixes[contexts] != contexts]
    suffixes = tree.suffixes[backing_off]
    arcs = join_arcs(
        int(number[skipped[tree.start]]),
        np.where(np.isnan(final_costs), np.inf, final_costs)[contexts],
        (
            number[sources],
            word_ids[tree.arc_words[is_kept]],
            word_ids[tree.arc_words[is_kept]],
            costs + skipped_costs[targets],
            number[skipped[targets]],
        ),
        (
            number[backing_off],
            symbols.backoff_output,
            EPSILON,
            -_LN10 * tree.log10_backoffs[backing_off] + skipped_costs[suffixes],
            number[skipped[suffixes]],
        ),
    )
    return arcs.select(np.lexsort((arcs.inputs, arcs.sources)))


def _skip(
    suffixes: np.ndarray, backoff_costs: np.ndarray, has_ngrams: np.ndarray, order: int
) -> tuple[np.ndarray, np.ndarray]:
    """The state [S] with n-grams where each state's back-offs lead, itself if it has some, and their cost [S]."""
    states, costs = np.arange(len(suffixes)), np.zeros(len(suffixes))
    for _ in range(order):
        costs = np.where(has_ngrams[states], costs, costs + backoff_costs[states])
        states = np.where(has_ngrams[states], states, suffixes[states])
    return states, costs
