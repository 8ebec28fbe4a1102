"""Small random automata for tests of fusion: a language model and phrase lists, as tables."""

import torch

from penstock.scoring.automaton import AllTransitions, Transitions
from penstock.scoring.fusion import Fusion, FusionStates

STATES = 5


class RandomAutomaton:
    """Scores and next states [states, V] drawn at random; state 0 of a phrase list stands for no phrases."""

    def __init__(self, seed: int, vocabulary_size: int, is_phrase_list: bool = False, device="cpu"):
        generator = torch.Generator().manual_seed(seed)
        self.vocabulary_size = vocabulary_size
        self.scores = 2 * torch.randn(STATES, vocabulary_size, generator=generator)
        self.next_states = torch.randint(1, STATES, (STATES, vocabulary_size), generator=generator)
        self.calls = 0
        if is_phrase_list:
            self.scores[0] = 0
            self.next_states[0] = 0
        self.scores, self.next_states = self.scores.to(device), self.next_states.to(device)

    def advance(self, states: torch.Tensor, labels: torch.Tensor) -> Transitions:
        at = states * self.vocabulary_size + labels
        return Transitions(self.scores.flatten()[at], self.next_states.flatten()[at])

    def score_all(self, states: torch.Tensor) -> AllTransitions:
        self.calls += 1
        scores = self.scores.index_select(0, states)
        return AllTransitions(scores, lambda labels: self.advance(states, labels).next_states)

    def final_scores(self, states: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(states, dtype=torch.float32)


def random_fusion(vocabulary_size: int, device="cpu") -> Fusion:
    """A language model and phrase lists."""
    lm = RandomAutomaton(1, vocabulary_size, device=device)
    return Fusion(lm, RandomAutomaton(2, vocabulary_size, is_phrase_list=True, device=device))


def fusion_states(lm_weights: list[float], boost_states: list[int], device="cpu") -> FusionStates:
    """Each stream's language model at its start state 0, with its weight, and its phrases' start state."""
    return FusionStates(
        torch.zeros(len(lm_weights), dtype=torch.int64, device=device),
        torch.tensor(boost_states, device=device),
        torch.tensor(lm_weights, dtype=torch.float32, device=device),
    )
