"""Transducer beam search the slow and obvious way: hypotheses are objects in lists, one utterance, double precision.

ALSD++ and AES++ (Grigoryan et al., "Pushing the limits of beam search decoding for Transducer-based ASR models") for
RNN-T and TDT, with shallow fusion by equation 3 and late pruning. The fast searches must give its results.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from penstock.model.config import IlmPair, TransducerConfig
from tests.helpers.reference.greedy import GreedyReference, Label, LstmState, Tensors


@dataclass
class PlainFusion:
    """A language model and boosting as tables: scores[state][label], next_states[state][label], final[state]."""

    scores: torch.Tensor
    next_states: torch.Tensor
    final: torch.Tensor
    weight: float = 1.0
    boost: torch.Tensor | None = None
    """[V] added to labels, unweighted."""


@dataclass
class Hypothesis:
    """A label sequence for the frames so far."""

    labels: list[Label]
    score: float
    external: float
    frame: int
    labels_at_frame: int
    prediction: torch.Tensor
    state: LstmState
    lm_state: int = 0

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(label.id for label in self.labels)


class Step(NamedTuple):
    """A continuation of a hypothesis."""

    parent: Hypothesis
    label: int
    jump: int
    score: float
    external: float
    acoustic: float


@dataclass
class AesParameters:
    """The parameters of `penstock.decoding.sizes.AesLimits`."""

    expansions: int = 5
    margin: float = 2.3
    extra: int = 2


@dataclass
class BeamReference(GreedyReference):
    """One utterance at a time."""

    config: TransducerConfig
    tensors: Tensors
    beam_size: int
    max_symbols: int | None = None
    fusion: PlainFusion | None = None
    forced_blank_takes_its_duration: bool = False
    """True as in NeMo: a forced blank moves by its best duration instead of one frame."""
    durations_are_places: bool = False
    """NeMo's fault: the place in the list of durations is taken for the duration."""
    aes: AesParameters = field(default_factory=AesParameters)
    pair: IlmPair | None = None
    """Weights of the internal language model, by default the checkpoint's."""

    def __post_init__(self) -> None:
        tensors = {name: t.double() for name, t in self.tensors.items()}
        super().__init__(self.config, tensors, self.max_symbols, self.pair or self.config.ilm_beam)
        self._blank = self.config.vocabulary_size

    def start(self) -> LstmState:
        return [(hidden.double(), cell.double()) for hidden, cell in super().start()]

    def alsd(self, encoded: torch.Tensor) -> list[Hypothesis]:
        """The finished beam, best total first. encoded: [T, D]."""
        encoded, beam = encoded.double(), [self._first()]
        while any(hypothesis.frame < len(encoded) for hypothesis in beam):
            candidates: list[Step] = []
            for hypothesis in beam:
                candidates += self._alsd_steps(hypothesis, encoded)
            beam = _merged([self._follow(step) for step in _best(candidates, self.beam_size)])
        return sorted(beam, key=lambda hypothesis: -hypothesis.score)

    def _alsd_steps(self, hypothesis: Hypothesis, encoded: torch.Tensor) -> list[Step]:
        if hypothesis.frame >= len(encoded):
            return [_stay(hypothesis)]
        logits = self.joint(encoded[hypothesis.frame], hypothesis.prediction)
        if hypothesis.labels_at_frame >= self._max_symbols:
            return [self._forced_blank(hypothesis, logits)]
        return self._steps(hypothesis, logits, self.beam_size)

    def aes_search(self, encoded: torch.Tensor) -> list[Hypothesis]:
        """The finished beam of AES++, best total first. encoded: [T, D]."""
        encoded, beam = encoded.double(), [self._first()]
        while any(hypothesis.frame < len(encoded) for hypothesis in beam):
            beam = self._leave_frame(beam, min(hypothesis.frame for hypothesis in beam), encoded)
        return sorted(beam, key=lambda hypothesis: -hypothesis.score)

    def _leave_frame(self, beam: list[Hypothesis], frame: int, encoded: torch.Tensor) -> list[Hypothesis]:
        beam = self._prefixes_added(beam, frame, encoded[frame])
        for _ in range(self.aes.expansions):
            known = {(hypothesis.ids, hypothesis.frame) for hypothesis in beam}
            candidates: list[Step] = []
            for hypothesis in beam:
                if hypothesis.frame > frame:
                    candidates.append(_stay(hypothesis))
                    continue
                logits = self.joint(encoded[frame], hypothesis.prediction)
                steps = self._steps(hypothesis, logits, self.beam_size + self.aes.extra, self.aes.margin)
                candidates += [s for s in steps if not _is_known(known, hypothesis, s)]
            chosen = _best(candidates, self.beam_size)
            beam = _merged([self._follow(step) for step in chosen])
        forced = []
        for hypothesis in beam:
            if hypothesis.frame > frame:
                forced.append(hypothesis)
                continue
            step = self._forced_blank(hypothesis, self.joint(encoded[frame], hypothesis.prediction))
            forced.append(self._follow(step))
        return _merged(forced)

    def _prefixes_added(self, beam: list[Hypothesis], frame: int, encoded_frame: torch.Tensor) -> list[Hypothesis]:
        """Each hypothesis with the probability of the step to it from its prefix, if the beam holds that."""
        added = []
        for hypothesis in beam:
            score = hypothesis.score
            for prefix in beam:
                if prefix.frame == frame and hypothesis.labels and prefix.ids == hypothesis.ids[:-1]:
                    logits = self.joint(encoded_frame, prefix.prediction)
                    fused, _ = self._fused(prefix, logits)
                    durations = self._durations(logits)
                    jump = hypothesis.frame - frame
                    for duration, log_probability in durations:
                        if duration == jump:
                            through = prefix.score + float(fused[hypothesis.ids[-1]]) + log_probability
                            score = _log_add(score, through)
            added.append(dataclasses.replace(hypothesis, score=score))
        return added

    def _first(self) -> Hypothesis:
        prediction, state = self.predict(self._blank, self.start())
        return Hypothesis([], 0.0, 0.0, 0, 0, prediction, state)

    def _durations(self, logits: torch.Tensor) -> list[tuple[int, float]]:
        """(frames, log-probability) of each; RNN-T has the one duration 0."""
        listed = self.config.tdt_durations
        if not listed:
            return [(0, 0.0)]
        if self.durations_are_places:
            listed = range(len(listed))
        return list(zip(listed, logits[self._blank + 1 :].log_softmax(0).tolist(), strict=True))

    def _fused(self, hypothesis: Hypothesis, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [V + 1] with and without what is external."""
        acoustic = logits[: self._blank + 1].log_softmax(0)
        fused, fusion = self.ranking(acoustic, hypothesis.prediction), self.fusion
        if fusion is None:
            return fused, acoustic
        if fusion.weight:
            fused[:-1] += fusion.weight * fusion.scores[hypothesis.lm_state].double()
            label_probability = max(1.0 - math.exp(float(acoustic[-1])), 1e-6)
            fused[:-1] += fusion.weight * math.log(label_probability)
            fused[-1] *= 1.0 + fusion.weight
        if fusion.boost is not None:
            fused[:-1] += fusion.boost.double()
        return fused, acoustic

    def _steps(self, hypothesis: Hypothesis, logits: torch.Tensor, width: int, margin: float = math.inf) -> list[Step]:
        fused, acoustic = self._fused(hypothesis, logits)
        labels = fused.argsort(descending=True, stable=True)[:width].tolist()
        durations = self._durations(logits)
        best = max(float(fused[label]) + value for label in labels for _, value in durations)
        steps = []
        for label in labels:
            for duration, log_probability in durations:
                if float(fused[label]) + log_probability < best - margin:
                    continue
                jump = max(duration, 1) if label == self._blank else duration
                total = hypothesis.score + float(fused[label]) + log_probability
                external = hypothesis.external + float(fused[label] - acoustic[label])
                steps.append(Step(hypothesis, label, jump, total, external, float(acoustic[label])))
        return _best(steps, width)

    def _forced_blank(self, hypothesis: Hypothesis, logits: torch.Tensor) -> Step:
        fused, acoustic = self._fused(hypothesis, logits)
        duration, log_probability = max(self._durations(logits), key=lambda pair: pair[1])
        jump = max(1, duration) if self.forced_blank_takes_its_duration else 1
        total = hypothesis.score + float(fused[self._blank]) + log_probability
        external = hypothesis.external + float(fused[self._blank] - acoustic[self._blank])
        return Step(hypothesis, self._blank, jump, total, external, 0.0)

    def _follow(self, step: Step) -> Hypothesis:
        old = step.parent
        if step.label == _KEEP:
            return old
        new = dataclasses.replace(old, score=step.score, external=step.external, frame=old.frame + step.jump)
        if step.label == self._blank:
            new.labels_at_frame = 0
            return new
        new.labels = [*old.labels, Label(step.label, old.frame, step.jump, step.acoustic)]
        new.labels_at_frame = 0 if step.jump else old.labels_at_frame + 1
        new.prediction, new.state = self.predict(step.label, old.state)
        if self.fusion is not None:
            new.lm_state = int(self.fusion.next_states[old.lm_state, step.label])
        return new


_KEEP = -1


def _stay(hypothesis: Hypothesis) -> Step:
    return Step(hypothesis, _KEEP, 0, hypothesis.score, hypothesis.external, 0.0)


def _best(steps: list[Step], count: int) -> list[Step]:
    return sorted(steps, key=lambda step: -step.score)[:count]


def _is_known(known: set[tuple[tuple[int, ...], int]], hypothesis: Hypothesis, step: Step) -> bool:
    """Whether the beam holds what `step` leads to; after a label without a jump also one blank later."""
    ids, frame = (*hypothesis.ids, step.label), hypothesis.frame + step.jump
    return (ids, frame) in known or (step.jump == 0 and (ids, frame + 1) in known)


def _merged(beam: list[Hypothesis]) -> list[Hypothesis]:
    """Hypotheses with the same labels at the same frame as one: the best, with the sum of their probabilities."""
    found: dict[tuple[tuple[int, ...], int], Hypothesis] = {}
    for hypothesis in sorted(beam, key=lambda one: -one.score):
        key = (hypothesis.ids, hypothesis.frame)
        if key in found:
            found[key].score = _log_add(found[key].score, hypothesis.score)
        else:
            found[key] = dataclasses.replace(hypothesis)
    return list(found.values())


def _log_add(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
