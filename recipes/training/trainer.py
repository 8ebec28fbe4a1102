"""The training loop: one encoder, a CTC head and some Transducer heads, averaged weights, resumable."""

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from recipes.training.batches import Batch
from recipes.training.lattice import transducer_loss

HEAD_WEIGHTS = ((1.0,), (0.65, 0.35))
"""Probabilities that a step trains the first or second of one or two Transducer heads. One head per step: it costs half
as much as the encoder."""


@dataclass(frozen=True)
class TrainerConfig:
    """Hyperparameters. The run ends after `minutes` if given, else after `steps`."""

    steps: int = 15_000
    minutes: float | None = None
    peak_learning_rate: float = 1.2e-3
    warm_up: float = 0.1
    """Share of the run."""
    mask_after: float = 0.1
    """Share of the run without SpecAugment."""
    aligned_ctc_loss: float = 5.0
    """The network counts as aligned when the CTC loss (mean over about 50 steps) falls below this. Then the curriculum
    advances and SpecAugment may begin: with masks no alignment is found."""
    ctc_weight: float = 0.3
    weight_decay: float = 1e-2
    average_decay: float = 0.9985
    gradient_norm: float = 2.0
    joint_dropout: float = 0.15
    """Dropout of the joint's two inputs. NeMo applies it to their [B, T, U, J] sum, a sixth of a CPU step."""
    save_every_s: float = 300.0
    report_every_s: float = 15.0
    measure_every_s: float = 900.0


class Trainer:
    """Trains NeMo models that share encoder and CTC head."""

    def __init__(self, models: dict[str, Any], durations: dict[str, tuple[int, ...]], config: TrainerConfig):
        """models, durations (empty for RNN-T): by name; the first model's encoder and CTC head are trained."""
        first = next(iter(models.values()))
        parts = {"encoder": first.encoder, "ctc": first.ctc_decoder}
        for name, model in models.items():
            parts[f"{name}_predictor"], parts[f"{name}_joint"] = model.decoder, model.joint
        self.module = torch.nn.ModuleDict(parts)
        norms = [part for part in self.module.modules() if isinstance(part, torch.nn.BatchNorm1d)]
        self._fixed_norms = [norm for norm in norms if norm.momentum == 0.0]
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
        self._ctc_loss_mean = math.inf
        self.is_aligned = False
        """True once the network has found an alignment of labels and frames."""

    @property
    def masks_input(self) -> bool:
        """True if SpecAugment applies to the next batch."""
        return self.is_aligned and self.progress >= self._config.mask_after

    @property
    def progress(self) -> float:
        """Share of the run that is done, 0 .. 1."""
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

    def losses(self, batch: Batch, head: str) -> dict[str, torch.Tensor]:
        """Mean losses over the batch of the CTC head and of a Transducer head."""
        mel, mel_counts, labels, label_counts = (tensor.to(self._device) for tensor in batch[:4])
        encoded, counts = self.module["encoder"](audio_signal=mel, length=mel_counts)  # [B, D, T]
        if batch.spans is not None:
            encoded, counts = utterances_of(encoded, counts, batch.spans.to(self._device))
        log_probs = self.module["ctc"](encoder_output=encoded).transpose(0, 1)  # [T, B, V + 1]
        ctc = torch.nn.functional.ctc_loss(
            log_probs, labels, counts, label_counts, blank=self._ctc_blank, reduction="none", zero_infinity=True
        )
        predicted = self.module[f"{head}_predictor"](targets=labels, target_length=label_counts)[0]  # [B, H, U + 1]
        logits = self._joint_logits(self.module[f"{head}_joint"], encoded, predicted)
        transducer = transducer_loss(logits, labels, counts, label_counts, self._durations[head])
        # Divided by the root of the label count: between the mean per label and the mean per utterance.
        return {name: (loss / (label_counts + 1).sqrt()).mean() for name, loss in (("ctc", ctc), (head, transducer))}

    def train_step(self, batch: Batch) -> dict[str, float]:
        """One step of the optimizer on the CTC head and one Transducer head drawn at random; returns the losses."""
        self.module.train()
        for fixed in self._fixed_norms:
            fixed.eval()
        head = self._head_of_step()
        found = self.losses(batch, head)
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
        """Trains to the end of the run. report: called with each new point of the curve; save, measure: called
        periodically; on_stage: called before each draw with `is_aligned` and `masks_input`."""
        begin_s = time.monotonic() - self.elapsed_s
        means = _Means()
        reported = saved = measured = self.elapsed_s
        while self.progress < 1:
            on_stage(self.is_aligned, self.masks_input)
            means.add(self.train_step(next(batches)))
            self.elapsed_s = time.monotonic() - begin_s
            is_last = self.progress >= 1
            if self.elapsed_s - reported < self._config.report_every_s and not is_last:
                continue
            point = {"step": self.step, "elapsed_s": self.elapsed_s, "learning_rate": self.learning_rate()}
            point |= means.take()
            reported = self.elapsed_s
            if self.elapsed_s - measured >= self._config.measure_every_s or is_last:
                point |= measure()
                measured = self.elapsed_s
            report(point)
            if self.elapsed_s - saved >= self._config.save_every_s or is_last:
                save()
                saved = self.elapsed_s

    def save(self, path: Path) -> None:
        """Writes a checkpoint atomically."""
        state = {
            "module": self.module.state_dict(), "optimizer": self._optimizer.state_dict(),
            "average": self.average.state(), "step": self.step, "elapsed_s": self.elapsed_s,
            "config": asdict(self._config), "random": torch.get_rng_state(),
            "is_aligned": self.is_aligned, "ctc_loss_mean": self._ctc_loss_mean,
        }  # fmt: skip
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Resumes from a checkpoint."""
        state = torch.load(path, map_location=self._device, weights_only=True)
        self.module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.average.load(state["average"])
        self.step, self.elapsed_s = state["step"], state["elapsed_s"]
        self.is_aligned, self._ctc_loss_mean = state["is_aligned"], state["ctc_loss_mean"]
        torch.set_rng_state(state["random"].cpu())

    def _watch_alignment(self, ctc_loss: float) -> None:
        if math.isinf(self._ctc_loss_mean):
            self._ctc_loss_mean = ctc_loss
        elif math.isfinite(ctc_loss):
            self._ctc_loss_mean += 0.02 * (ctc_loss - self._ctc_loss_mean)
        self.is_aligned |= self._ctc_loss_mean < self._config.aligned_ctc_loss

    def _head_of_step(self) -> str:
        """Drawn from the step number alone, so that a resumed run draws as an uninterrupted one."""
        return random.Random(self.step).choices(self._heads, HEAD_WEIGHTS[len(self._heads) - 1])[0]

    def _joint_logits(self, joint: Any, encoded: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
        """[B, T, U + 1, outputs]; encoded: [B, D, T], predicted: [B, H, U + 1]."""
        dropout = self._config.joint_dropout
        frames = torch.dropout(joint.project_encoder(encoded.transpose(1, 2)), dropout, self.module.training)
        rows = torch.dropout(joint.project_prednet(predicted.transpose(1, 2)), dropout, self.module.training)
        return joint.joint_net(frames.unsqueeze(2) + rows.unsqueeze(1))


def utterances_of(
    encoded: torch.Tensor, counts: torch.Tensor, spans: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The frames [S, D, T'] of utterances that share rows, zeros after each, and their counts [S].

    encoded: [B, D, T]; counts: [B]; spans: as of `Batch`.
    """
    rows, begins = spans[:, 0], spans[:, 1]
    lengths = torch.minimum(spans[:, 2], counts[rows]) - begins
    offsets = torch.arange(int(lengths.max()), device=encoded.device)
    is_frame = offsets < lengths[:, None]  # [S, T']
    frames = torch.where(is_frame, begins[:, None] + offsets, 0)
    found = encoded.transpose(1, 2)[rows[:, None], frames] * is_frame[:, :, None]  # [S, T', D]
    return found.transpose(1, 2), lengths


class WeightAverage:
    """Exponential moving average of a module's parameters and of its batch norms' statistics, which is exported."""

    def __init__(self, module: torch.nn.Module, decay: float):
        self.tensors = {name: tensor.clone() for name, tensor in _averaged(module)}
        self._decay = decay
        self._updates = 0

    def update(self, module: torch.nn.Module) -> None:
        """Moves the average; the decay is smaller at first, so that the initial weights are forgotten."""
        self._updates += 1
        share = 1 - min(self._decay, self._updates / (self._updates + 10))
        torch._foreach_lerp_(list(self.tensors.values()), [tensor for _, tensor in _averaged(module)], share)

    def swap(self, module: torch.nn.Module) -> None:
        """Exchanges the module's values with the average."""
        for name, tensor in _averaged(module):
            kept = tensor.clone()
            tensor.copy_(self.tensors[name])
            self.tensors[name].copy_(kept)

    def state(self) -> dict:
        """State for a checkpoint."""
        return {"tensors": self.tensors, "updates": self._updates}

    def load(self, state: dict) -> None:
        """Restores the state of a checkpoint."""
        self.tensors, self._updates = state["tensors"], state["updates"]


def _averaged(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Names and values that are averaged; without counters."""
    return [(name, tensor) for name, tensor in module.state_dict().items() if tensor.is_floating_point()]


class _Means:
    """Means of named values since the last `take`."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)

    def take(self) -> dict[str, float]:
        means = {name: sum(found) / len(found) for name, found in self._values.items()}
        self._values = {}
        return means
