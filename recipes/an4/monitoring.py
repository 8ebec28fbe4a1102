"""Monitoring of a training run: WER on a validation manifest."""

from collections.abc import Sequence
from pathlib import Path

import torch

from penstock.evaluation.errors import EditCounts, compare
from recipes.training.batches import read_recordings

STREAMING = ((70, 6), (70, 0))


class Validation:
    """Transcribes a manifest with each model and context, greedy."""

    def __init__(self, manifest: Path | None, contexts: Sequence[Sequence[int]] = STREAMING):
        self._contexts = contexts
        self._recordings = read_recordings(manifest) if manifest else []

    def __call__(self, models: dict[str, torch.nn.Module]) -> dict[str, float]:
        """WER in percent by model and context; empty without a manifest."""
        found = {}
        for name, model in models.items() if self._recordings else ():
            model.eval()
            for context in self._contexts:
                model.encoder.set_default_att_context_size(list(context))
                found[f"WER {name} [{context[0]},{context[1]}]"] = self._word_error_rate(model)
            model.train()
        return found

    @torch.no_grad()
    def _word_error_rate(self, model: torch.nn.Module) -> float:
        counts = EditCounts()
        for recording in self._recordings:
            signal = torch.from_numpy(recording.samples)[None].to(model.device)
            length = torch.tensor([signal.shape[1]], device=model.device)
            encoded, lengths = model(input_signal=signal, input_signal_length=length)
            (best,) = model.decoding.rnnt_decoder_predictions_tensor(encoded, lengths)
            counts += compare(" ".join(recording.words), best.text).words
        return 100.0 * (counts.rate or 0.0)
