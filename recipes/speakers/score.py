"""The diarization error rate (DER) of a bundle on mixtures of recordings of speakers that it was not trained on.

    python -m recipes.speakers.score models/my-speakers an4/dev.jsonl [--speakers 2] [--mixtures 60]

Turns of one to three recordings, about 19 s without overlap, are joined as samples, with pauses up to a second. As file
and live, with a collar of 0.25 s; missed speech, false alarms and confused speakers count.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from penstock.evaluation.diarization import DiarizationErrors, diarization_errors
from penstock.speakers.bundle import SpeakerCheckpoint, StepSize
from penstock.speakers.diarizer import Diarizer, SpeakerSteps, live_rows
from penstock.speakers.turns import turns
from recipes.speakers.mixtures import arrival, speech
from recipes.speakers.train import divided, log_mel_of
from recipes.training.batches import Recording, read_recordings

_COLLAR_S = 0.25
_HOP_SAMPLES = 160
_HOP_S = 0.01


class Example(NamedTuple):
    """A mixture to score."""

    samples: np.ndarray
    """[L] float32."""
    speaks: np.ndarray
    """[N, K] float32, in the order of arrival."""


def example(recordings: list[Recording], speakers: int, random: np.random.Generator) -> Example:
    """A mixture of `speakers` of those in `recordings`."""
    log_mel = log_mel_of()
    names = random.choice(sorted({each.speaker for each in recordings}), speakers, replace=False)
    parts, active, seconds, turn, who = [], [], random.uniform(10, 20), 0, 0
    while turn < speakers or sum(map(len, parts)) < seconds * 16_000:
        who = turn if turn < speakers else int(random.choice([i for i in range(speakers) if i != who]))
        own = [each for each in recordings if each.speaker == names[who]]
        for number in random.choice(len(own), random.integers(1, 4), replace=False):
            samples = own[number].samples[: len(own[number].samples) // _HOP_SAMPLES * _HOP_SAMPLES]
            found = np.zeros((len(samples) // _HOP_SAMPLES, speakers), np.float32)
            found[:, who] = speech(log_mel(torch.from_numpy(samples)).numpy())
            pause = int(random.integers(101))
            parts += [samples, np.zeros(pause * _HOP_SAMPLES, np.float32)]
            active += [found, np.zeros((pause, speakers), np.float32)]
        turn += 1
    speaks = np.concatenate(active)
    return Example(np.concatenate(parts), speaks[:, arrival(speaks)])


def live(diarizer: Diarizer, samples: torch.Tensor, size: StepSize) -> torch.Tensor:
    """Probabilities [N, K] of samples [L] of a live stream with steps of this size."""
    network, slot = diarizer.network, torch.zeros(1, dtype=torch.int64)
    steps, frames = SpeakerSteps(network, network.config.live_queue, 1), network.embed(log_mel_of()(samples))
    found, at = [], 0
    while at < len(frames):
        part = frames[at : at + size.chunk + size.right]
        right = size.right if at + len(part) < len(frames) else 0
        rows = live_rows(slot, part[None], torch.tensor([len(part)]), torch.tensor([right]))
        found.append(steps.step(rows)[0, : 8 * (len(part) - right)])
        at += len(part) - right
    return torch.cat(found)[: len(samples) // _HOP_SAMPLES]


@torch.no_grad()
def score(diarizer: Diarizer, examples: list[Example]) -> dict[str, DiarizationErrors]:
    """The sums of all examples: "file", and the modes of live streams."""
    sums: dict[str, DiarizationErrors] = {}
    for samples, reference in examples:
        signal = torch.from_numpy(samples)
        results = {"file": diarizer.probabilities(signal)}
        results |= {name: live(diarizer, signal, size) for name, size in diarizer.config.live_steps.items()}
        for name, probabilities in results.items():
            own = diarization_errors(
                turns(torch.from_numpy(reference), _HOP_S), turns(probabilities, _HOP_S), _COLLAR_S
            )
            sums[name] = sums.get(name, DiarizationErrors()) + own
    return sums


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--left-out", action="store_true", help="only speakers that the training left out")
    parser.add_argument("--speakers", type=int, default=2)
    parser.add_argument("--mixtures", type=int, default=60)
    options = parser.parse_args(arguments)
    recordings = read_recordings(options.manifest)
    if options.left_out:
        recordings = divided(recordings)[1]
    random = np.random.default_rng(0)
    examples = [example(recordings, options.speakers, random) for _ in range(options.mixtures)]
    for name, found in score(Diarizer(SpeakerCheckpoint(options.bundle)), examples).items():
        parts = [100 * part_s / found.speech_s for part_s in (found.missed_s, found.false_alarm_s, found.confused_s)]
        print(f"{name}: DER {sum(parts):.1f} % (missed {parts[0]:.1f}, false {parts[1]:.1f}, confused {parts[2]:.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
