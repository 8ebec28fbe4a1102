"""Arguments and results of the kernels and their PyTorch references; can be imported without Triton."""

from typing import NamedTuple

import torch

HASH_MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64
"""Multiplies keys of tokens of a graph search, so that they find their cells: 64 bits, with wrap-around."""
HASH_SHIFTS = (40, 20)
"""First bit of the cell's number in the product, in either round."""
MAX_KEYS, MAX_HEAD_WIDTH = 128, 128
"""Limits of the encoder's attention: frames of all pages of a stream, in one block of a program; numbers of a head."""
NO_BID = 2**63 - 1
"""An empty cell: above every bid, also one of an infinite cost."""


class JointChoice(NamedTuple):
    """Scores and choices of the joint for pairs of frame and prediction; shapes [N, W] or [N], like the frames.

    Log-probabilities are float32, over labels and blank; those of durations over durations. Among equals the lowest
    index wins.
    """

    blank_score: torch.Tensor
    """Log-probability of blank."""
    label: torch.Tensor
    """int64, the best label by acoustic score."""
    label_score: torch.Tensor
    """The label's log-probability."""
    duration: torch.Tensor | None
    """int64, index of the best duration into the model's list; None for RNN-T."""
    duration_score: torch.Tensor | None
    """The duration's log-probability, or None."""
    fused_label: torch.Tensor | None
    """int64, the best label by log-probability plus `extra`; None without `extra`."""
    fused_label_score: torch.Tensor | None
    """The log-probability of `fused_label`, without `extra`."""
    fused_total: torch.Tensor | None
    """The log-probability of `fused_label` plus `extra`."""


class JointWeights(NamedTuple):
    """The joint after the sum of the projections. J joint width, V labels without blank, D durations."""

    weight: torch.Tensor
    """[J, V + 1 + D], blank at V, float32, float16 or bfloat16."""
    bias: torch.Tensor
    """[V + 1 + D], of the same type."""
    vocabulary_size: int
    activation: str
    """relu, tanh or sigmoid."""

    @property
    def durations(self) -> int:
        """D; 0 for RNN-T."""
        return len(self.bias) - self.vocabulary_size - 1


class LstmLayerWeights(NamedTuple):
    """Weights of one layer; gates in the order input, forget, cell, output."""

    input_weight: torch.Tensor | None
    """[H, 4 * H]; None for the first layer, whose input product is in the label table."""
    hidden_weight: torch.Tensor
    """[H, 4 * H]"""
    bias: torch.Tensor | None
    """[4 * H], both biases; None for the first layer."""


class PredictorWeights(NamedTuple):
    """LSTM prediction network with its projection into the joint."""

    label_gates: torch.Tensor
    """[V + 1, 4 * H]: the first layer's gates from the label alone, biases included."""
    layers: tuple[LstmLayerWeights, ...]
    projection_weight: torch.Tensor
    """[H, J]"""
    projection_bias: torch.Tensor
    """[J]"""


class PredictorStates(NamedTuple):
    """The predictor states of N hypotheses."""

    projected: torch.Tensor
    """[N, J], the prediction projected into the joint."""
    hidden: torch.Tensor
    """[N, layers, H]"""
    cell: torch.Tensor
    """[N, layers, H]"""


class NgramArcs(NamedTuple):
    """A back-off model as flat arrays. S states, A arcs, V labels. Scores are float32, natural logarithm."""

    arc_starts: torch.Tensor
    """[S + 1] int64: state s owns the arcs arc_starts[s] .. arc_starts[s + 1] - 1. The empty context owns none."""
    arc_keys: torch.Tensor
    """[A + 1 or more] int64, sorted: state * V + label; those after the A arcs exceed every possible key."""
    arc_scores: torch.Tensor
    """[at least A]"""
    arc_states: torch.Tensor
    """[at least A] int64, the next state."""
    root_scores: torch.Tensor
    """[V], scores of the empty context."""
    root_states: torch.Tensor
    """[V] int64"""
    backoff_scores: torch.Tensor
    """[S], 0 for the empty context."""
    backoff_states: torch.Tensor
    """[S] int64, the empty context's is itself."""


class GraphArcs(NamedTuple):
    """A decoding graph: S states and state S without arcs, A arcs and arc A of a frame not taken, C closure entries."""

    starts: torch.Tensor
    """[S + 1] int64, a state's first arc."""
    degrees: torch.Tensor
    """[S + 1] int64"""
    labels: torch.Tensor
    """[A + 1] int64"""
    weights: torch.Tensor
    """[A + 1] float32"""
    words: torch.Tensor
    """[A + 1] int64"""
    targets: torch.Tensor
    """[A + 1] int64"""
    pieces: torch.Tensor
    """[A + 1] int32, the token that begins on the arc; negative: none."""
    closure_starts: torch.Tensor
    """[S + 1] int64, a state's first closure entry: the state itself."""
    closure_degrees: torch.Tensor
    """[S + 1] int64"""
    closure_targets: torch.Tensor
    """[C] int64"""
    closure_weights: torch.Tensor
    """[C] float32"""
    closure_words: torch.Tensor
    """[C] int64"""


class GraphTokens(NamedTuple):
    """Ends of paths in a graph, [B, w]; a row's live ones come first."""

    states: torch.Tensor
    """int64; S where there is no token."""
    phrases: torch.Tensor
    """int64, state of the phrase list."""
    costs: torch.Tensor
    """float32; infinite where there is no token."""


class GraphFrame(NamedTuple):
    """The inputs of a frame for B rows."""

    label_costs: torch.Tensor
    """float32, flat."""
    offsets: torch.Tensor
    """[B] int64, where the row's label costs begin."""
    is_idle: torch.Tensor
    """[B] bool, of any stride: the row takes no frame, and each of its tokens takes arc A."""
    lm_weights: torch.Tensor
    """[B] float32, scale of the graph's weights."""
    word_boosts: torch.Tensor | None
    """float32, flat: boosts of words; None: no row boosts any."""
    boost_rows: torch.Tensor | None
    """[B] int64, where the row's boosts begin."""


class GraphBackpointers(NamedTuple):
    """The sources of the tokens after a frame, [B, K] int64; 0 where there is none."""

    sources: torch.Tensor
    """The token before the frame, numbered row * w + its place."""
    arcs: torch.Tensor
    emitting_indices: torch.Tensor
    """A number of the followed arc that no other of the frame has: row * A + its place."""
    closure_entries: torch.Tensor
    is_live: torch.Tensor
    """bool, True where there is a token."""
