"""An n-gram language model on the device, for many hypotheses at once ("NGPU-LM" of arXiv 2505.22857).

Knows labels and states; not which words they are, no search and no weights. Scores are natural logarithms.
"""

import numpy as np
import torch

from penstock.fusion.automaton import Arcs, Look
from penstock.fusion.ngram_tables import NgramTables
from penstock.kernels.capability import AUTO, FUSED, resolve
from penstock.kernels.contracts import NgramArcs
from penstock.kernels.ngram import NgramLookup
from penstock.kernels.torch_twins import back_off


class NgramLm:
    """The automaton of a back-off model: complete, because what an n-gram does not say its suffixes do.

    After construction nothing here synchronises with the host, allocates by content, or loops by content.
    """

    def __init__(self, tables: NgramTables, device: torch.device | str = "cpu", kernels: str = AUTO):
        """`tables` as `build_tables` makes them; copied to `device`. kernels: as `capability.resolve` has it."""
        self.vocabulary_size = len(tables.root_scores)
        self.order = int(tables.order[0])
        self.start_state = int(tables.start_state[0])
        """The state after `<s>`: where an utterance starts."""
        self.device = torch.device(device)
        # One more key, above all others, so that a search that ends beyond the last arc finds something to compare.
        nowhere = np.array([len(tables.backoff_scores) * self.vocabulary_size])
        starts, most_arcs = _arc_ranges(tables)
        self.arcs = NgramArcs(
            self._place(starts),
            self._place(np.append(tables.arc_keys, nowhere)),
            self._place(np.append(tables.arc_scores, np.float32(0))),
            self._place(np.append(tables.arc_states, 0)),
            self._place(tables.root_scores),
            self._place(tables.root_states),
            self._place(tables.backoff_scores),
            self._place(tables.backoff_states),
        )
        """The model itself, on the device."""
        self._final_scores = self._place(tables.final_scores)
        self._fan = torch.arange(most_arcs, device=self.device)
        self.kernels = resolve(kernels, self.device)
        """What `advance` runs on, "torch" or "fused", for the log."""
        self._lookup = NgramLookup(self.arcs, self.order, self.kernels == FUSED)
        self.arc_count = len(tables.arc_keys) + self.vocabulary_size
        self.state_count = len(tables.backoff_scores)

    def label_scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [N, V] float32 of every label from `states` [N] int64. Working memory is that of the result."""
        arcs = self.arcs
        contexts, paid = back_off(arcs, self.order, states)
        scores = paid[-1].unsqueeze(1) + arcs.root_scores
        # One more column takes what a state with fewer arcs than the most has nothing to say about.
        scores = torch.nn.functional.pad(scores, (0, 1))
        for state, backoff in zip(reversed(contexts[:-1]), reversed(paid[:-1]), strict=True):
            places = arcs.arc_starts[state].unsqueeze(1) + self._fan
            is_own = places < arcs.arc_starts[state + 1].unsqueeze(1)
            places = torch.where(is_own, places, 0)
            labels = arcs.arc_keys[places] - (state * self.vocabulary_size).unsqueeze(1)
            columns = torch.where(is_own, labels, self.vocabulary_size)
            scores.scatter_(1, columns, backoff.unsqueeze(1) + arcs.arc_scores[places])
        return scores[:, : self.vocabulary_size]

    def look(self, states: torch.Tensor) -> Look:
        """The arcs of `states` [N] int64."""
        return Look(self.label_scores(states), lambda labels: self.advance(states, labels).next_states)

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Arcs:
        """Takes one arc from each of `states` [...] int64 by `labels` of the same shape, 0 .. V-1 (not checked)."""
        return self._lookup.advance(states, labels)

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        """Scores [...] float32 of `</s>` from `states` [...] int64, back-off included."""
        return self._final_scores[states]

    def _place(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def _arc_ranges(tables: NgramTables) -> tuple[np.ndarray, int]:
    """First arc of each state [S + 1] int64, and the most arcs of one state (the empty context aside)."""
    boundaries = np.arange(len(tables.backoff_scores) + 1) * len(tables.root_scores)
    starts = np.searchsorted(tables.arc_keys, boundaries)
    return starts.astype(np.int64), int(np.diff(starts).max(initial=0))
