"""The training loop: one encoder, a CTC head and any number of Transducer heads, averaged weights, resumable."""

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from penstock.training.batches import Batch
from penstock.training.transducer_loss import transducer_loss
from penstock.training.weight_average import WeightAverage

HEAD_WEIGHTS = (0.65, 0.35)
"""How often a step trains the first and the second Transducer head: one at a time, since a head costs as much as half
the encoder."""


@dataclass(frozen=True)
class TrainerConfig:
    """How to train. The run ends after `steps`, or after `minutes` where that is given."""

    steps: int = 15_000
    minutes: float | None = None
    peak_learning_rate: float = 1.2e-3
    warm_up: float = 0.1
    """Share of the run."""
    mask_after: float = 0.1
    """Share of the run before SpecAugment begins."""
    aligned_ctc_loss: float = 5.0
    """The curriculum goes on, and SpecAugment may begin, when the CTC loss (its mean over some 50 steps) falls below
    this: behind masks no alignment is found."""
    ctc_weight: float = 0.3
    weight_decay: float = 1e-2
    average_decay: float = 0.9985
    gradient_norm: float = 2.0
    joint_dropout: float = 0.15
    """Of the joint's two inputs; NeMo's own place for it, the [B, T, U, J] sum, costs a sixth of a step on a CPU."""
    save_every_s: float = 300.0
    report_every_s: float = 15.0
    measure_every_s: float = 900.0


class Trainer:
    """Trains NeMo models that share encoder and CTC head (`demo_model.share_encoder`)."""

    def __init__(
        self, models: dict[str, torch.nn.Module], durations: dict[str, tuple[int, ...]], config: TrainerConfig
    ):
        """models, durations (empty for RNN-T): by name; the first model's encoder and CTC head are trained."""
        first = next(iter(models.values()))
        parts = {"encoder": first.encoder, "ctc": first.ctc_decoder}
        for name, model in models.items():
            parts[f"{name}_predictor"], parts[f"{name}_joint"] = model.decoder, model.joint
        self.module = torch.nn.ModuleDict(parts)
        self._heads = list(models)
        self._durations = durations
        self._config = config
        self._device = next(first.parameters()).device
        self._ctc_blank = first.ctc_decoder.num_classes_with_blank - 1
        decayed = [p for p in self.module.parameters() if p.ndim > 1]
        others = [p for p in self.module.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), foreach=True)
        self.average = WeightAverage(self.module, config.average_decay)
        self.step = 0
        self.elapsed_s = 0.0
        self.curve: list[dict] = []
        self._ctc_loss_mean = math.inf
        self.is_aligned = False
        """Whether the network has once had an alignment of labels and frames."""

    @property
    def masks_input(self) -> bool:
        """Whether SpecAugment is to be applied."""
        return self.is_aligned and self.progress >= self._config.mask_after

    @property
    def progress(self) -> float:
        """0 .. 1"""
        if self._config.minutes is not None:
            return min(1.0, self.elapsed_s / (60 * self._config.minutes))
        return min(1.0, self.step / self._config.steps)

    def learning_rate(self) -> float:
        """Linear warm-up, then half a cosine."""
        config, progress = self._config, self.progress
        if progress < config.warm_up:
            # Before the first step has been timed, progress is 0.
            return config.peak_learning_rate * max(progress / config.warm_up, 0.01)
        share = (progress - config.warm_up) / (1 - config.warm_up)
        return config.peak_learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))

    def losses(self, batch: Batch, heads: list[str]) -> dict[str, torch.Tensor]:
        """Mean loss over the batch of the CTC head and of the Transducer heads named."""
        mel, mel_counts, labels, label_counts = (tensor.to(self._device) for tensor in batch)
        encoded, counts = self.module["encoder"](audio_signal=mel, length=mel_counts)  # [B, D, T]
        log_probs = self.module["ctc"](encoder_output=encoded).transpose(0, 1)  # [T, B, V + 1]
        found = {"ctc": self._ctc_loss(log_probs, counts, labels, label_counts)}
        for name in heads:
            predicted = self.module[f"{name}_predictor"](targets=labels, target_length=label_counts)[0]
            logits = self._joint_logits(self.module[f"{name}_joint"], encoded, predicted)
            # By the root of the number of labels: between the mean a label and the mean an utterance.
            loss = transducer_loss(logits, labels, counts, label_counts, self._durations[name])
            found[name] = (loss / (label_counts + 1).sqrt()).mean()
        return found

    def train_step(self, batch: Batch) -> dict[str, float]:
        """One step of the optimizer on the CTC head and one Transducer head drawn at random; returns the losses."""
        self.module.train()
        head = self._head_of_step()
        found = self.losses(batch, [head])
        total = (1 - self._config.ctc_weight) * found[head] + self._config.ctc_weight * found["ctc"]
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self._config.gradient_norm)
        if bool(torch.isfinite(norm)):
            for group in self._optimizer.param_groups:
                group["lr"] = self.learning_rate()
            self._optimizer.step()
            self.average.update(self.module)
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._watch_alignment(float(found["ctc"].detach()))
        return {name: float(loss.detach()) for name, loss in found.items()} | {"norm": float(norm)}

    def run(
        self,
        batches: Iterator[Batch],
        report: Callable[[dict], None],
        save: Callable[[], None],
        measure: Callable[[], dict],
        on_stage: Callable[[bool, bool], None],
    ) -> None:
        """Trains to the end of the run. report: gets the curve's newest point; save, measure: called now and then;
        on_stage: before each draw, with whether there is an alignment and whether to mask."""
        clock = _Clock(self.elapsed_s)
        means = _Means()
        reported = saved = measured = self.elapsed_s
        while self.progress < 1:
            on_stage(self.is_aligned, self.masks_input)
            means.add(self.train_step(next(batches)))
            self.elapsed_s = clock.now()
            is_last = self.progress >= 1
            if self.elapsed_s - reported < self._config.report_every_s and not is_last:
                continue
            point = {"step": self.step, "elapsed_s": self.elapsed_s, "learning_rate": self.learning_rate()}
            point |= means.take()
            reported = self.elapsed_s
            if self.elapsed_s - measured >= self._config.measure_every_s or is_last:
                point |= measure()
                measured = self.elapsed_s
            self.curve.append(point)
            report(point)
            if self.elapsed_s - saved >= self._config.save_every_s or is_last:
                save()
                saved = self.elapsed_s

    def save(self, path: Path) -> None:
        """Writes a checkpoint, whole or not at all."""
        state = {
            "module": self.module.state_dict(), "optimizer": self._optimizer.state_dict(),
            "average": self.average.state(), "step": self.step, "elapsed_s": self.elapsed_s, "curve": self.curve,
            "config": asdict(self._config), "random": torch.get_rng_state(),
            "is_aligned": self.is_aligned, "ctc_loss_mean": self._ctc_loss_mean,
        }  # fmt: skip
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Goes on from a checkpoint."""
        state = torch.load(path, map_location=self._device, weights_only=True)
        self.module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.average.load(state["average"])
        self.step, self.elapsed_s, self.curve = state["step"], state["elapsed_s"], state["curve"]
        self.is_aligned, self._ctc_loss_mean = state["is_aligned"], state["ctc_loss_mean"]
        torch.set_rng_state(state["random"].cpu())

    def _watch_alignment(self, ctc_loss: float) -> None:
        if math.isinf(self._ctc_loss_mean):
            self._ctc_loss_mean = ctc_loss
        elif math.isfinite(ctc_loss):
            self._ctc_loss_mean += 0.02 * (ctc_loss - self._ctc_loss_mean)
        self.is_aligned |= self._ctc_loss_mean < self._config.aligned_ctc_loss

    def _head_of_step(self) -> str:
        """Drawn by the step's number alone, so that a resumed run draws as one that never stopped."""
        return random.Random(self.step).choices(self._heads, HEAD_WEIGHTS[: len(self._heads)])[0]

    def _joint_logits(self, joint: torch.nn.Module, encoded: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
        """[B, T, U + 1, outputs]; encoded: [B, D, T], predicted: [B, H, U + 1]."""
        dropout = self._config.joint_dropout
        frames = torch.dropout(joint.project_encoder(encoded.transpose(1, 2)), dropout, self.module.training)
        rows = torch.dropout(joint.project_prednet(predicted.transpose(1, 2)), dropout, self.module.training)
        return joint.joint_net(frames.unsqueeze(2) + rows.unsqueeze(1))

    def _ctc_loss(
        self, log_probs: torch.Tensor, counts: torch.Tensor, labels: torch.Tensor, label_counts: torch.Tensor
    ) -> torch.Tensor:
        """Mean over the batch; log_probs: [T, B, V + 1], counts: [B] encoder frames."""
        loss = torch.nn.functional.ctc_loss(
            log_probs, labels, counts, label_counts, blank=self._ctc_blank, reduction="none", zero_infinity=True
        )
        return (loss / (label_counts + 1).sqrt()).mean()


class _Means:
    """Means of named values since they were last taken."""

    def __init__(self):
        self._values: dict[str, list[float]] = {}

    def add(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)

    def take(self) -> dict[str, float]:
        means = {name: sum(found) / len(found) for name, found in self._values.items()}
        self._values = {}
        return means


class _Clock:
    """Seconds of training, earlier runs included."""

    def __init__(self, earlier_s: float):
        self._begin_s = time.monotonic() - earlier_s

    def now(self) -> float:
        return time.monotonic() - self._begin_s
