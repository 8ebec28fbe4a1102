"""Word error rate of models in training, greedy, on a validation manifest."""

from pathlib import Path

import torch

from penstock.evaluation.edit_distance import edit_distance
from penstock.training.corpus import read_manifest

_CONTEXTS = ((70, 6), (70, 0))


class Measure:
    """Transcribes a manifest with each model and context."""

    def __init__(self, manifest: Path | None):
        self._recordings = read_manifest(manifest) if manifest else []

    def __call__(self, models: dict[str, torch.nn.Module]) -> dict[str, float]:
        """WER in percent by model and context; nothing without a manifest."""
        found = {}
        for name, model in models.items() if self._recordings else ():
            model.eval()
            for context in _CONTEXTS:
                model.encoder.set_default_att_context_size(list(context))
                found[f"WER {name} [{context[0]},{context[1]}]"] = self._word_error_rate(model)
            model.train()
        return found

    @torch.no_grad()
    def _word_error_rate(self, model: torch.nn.Module) -> float:
        errors, words = 0, 0
        for recording in self._recordings:
            signal = torch.from_numpy(recording.samples)[None].to(model.device)
            count = torch.tensor([signal.shape[1]], device=model.device)
            encoded, lengths = model(input_signal=signal, input_signal_length=count)
            (best,) = model.decoding.rnnt_decoder_predictions_tensor(encoded, lengths)
            errors += edit_distance(recording.words, tuple(best.text.split()))
            words += len(recording.words)
        return 100.0 * errors / max(words, 1)
