"""A tiny model with the parts of a NeMo model that the trainer uses, and a task that it can learn."""

import torch

from recipes.training.batches import Batch

MEL_BINS, LABELS, WIDTH, HIDDEN = 6, 4, 12, 10
FRAMES_PER_LABEL = 8


class _Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(MEL_BINS, WIDTH)

    def forward(self, audio_signal: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frames = torch.nn.functional.avg_pool1d(audio_signal, FRAMES_PER_LABEL // 2)
        return torch.tanh(self.layer(frames.transpose(1, 2))).transpose(1, 2), length // (FRAMES_PER_LABEL // 2)


class _CtcHead(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.num_classes_with_blank = LABELS + 1
        self.layer = torch.nn.Linear(WIDTH, LABELS + 1)

    def forward(self, encoder_output: torch.Tensor) -> torch.Tensor:
        return self.layer(encoder_output.transpose(1, 2)).log_softmax(-1)


class _Predictor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(LABELS + 1, HIDDEN)

    def forward(self, targets: torch.Tensor, target_length: torch.Tensor) -> tuple[torch.Tensor, None]:
        context = torch.nn.functional.pad(targets, (1, 0), value=LABELS)  # U + 1: the start, then each label
        return self.table(context).transpose(1, 2), None


class _Joint(torch.nn.Module):
    def __init__(self, durations: int):
        super().__init__()
        self.project_encoder = torch.nn.Linear(WIDTH, HIDDEN)
        self.project_prednet = torch.nn.Linear(HIDDEN, HIDDEN)
        self.joint_net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(HIDDEN, LABELS + 1 + durations))


class TinyModel(torch.nn.Module):
    """encoder, ctc_decoder, decoder and joint, named as in NeMo's hybrid models."""

    def __init__(self, durations: int = 0):
        super().__init__()
        self.encoder, self.ctc_decoder = _Encoder(), _CtcHead()
        self.decoder, self.joint = _Predictor(), _Joint(durations)


def toy_batch(seed: int, utterances: int = 8) -> Batch:
    """A label lasts 8 frames, in which its own bin is loud; the last utterance has no label."""
    random = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 5, (utterances,), generator=random)
    counts[-1] = 0
    labels = torch.randint(0, LABELS, (utterances, int(counts.max())), generator=random)
    mel = 0.1 * torch.randn(utterances, MEL_BINS, FRAMES_PER_LABEL * (labels.shape[1] + 1), generator=random)
    for row, count in enumerate(counts):
        for place in range(count):
            begin = FRAMES_PER_LABEL * place
            mel[row, labels[row, place], begin : begin + FRAMES_PER_LABEL // 2] += 3.0
    references = [toy_text(row[:count]) for row, count in zip(labels.tolist(), counts.tolist(), strict=True)]
    return Batch(mel, FRAMES_PER_LABEL * (counts + 1), labels, counts, references)


def toy_text(labels: list[int]) -> str:
    """A word per label."""
    return " ".join("abcd"[label] for label in labels)
