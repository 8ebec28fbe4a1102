"""Reads tests/golden/: what NeMo computes with tiny checkpoints, for tests that need no NeMo.

    cases.json              one entry for each tiny checkpoint: its contexts, options and greedy output
    CASE.nemo               the checkpoint, as NeMo saves it (two without the filterbank, one not gzipped)
    CASE.npz                encoder output "L,R/SIGNAL" -> float32 [T, D], offline, whole signal
    signals.npz             SIGNAL -> int16 [samples] at 16 kHz; names "medium", "short", "long"
    front_end_NAME.npz      "mel/SIGNAL" -> float32 [N, F] (valid frames, computed in float64), "window", "filterbank";
                            shared by cases
    prompt_hybrid.nemo      a checkpoint with language prompts; prompts.json has its greedy output and text
    bundled.json, .npz      the same for the bundled model on tests/data/an4, with its weights rounded to float16

`tests/golden/make_nemo.py` makes them. Greedy output is of one signal alone in its batch, with the encoder output of
NeMo, and does not change when that is disturbed by 1e-4. Each token has its log-probability among labels and blank.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).parents[1] / "golden"
AN4 = Path(__file__).parents[1] / "data" / "an4"
SIGNALS = ("medium", "short", "long")


@dataclass(frozen=True)
class Greedy:
    """Greedy output of one signal."""

    tokens: list[int]
    timestamps: list[int]
    """Encoder frame of each token, from the start of the signal."""
    durations: list[int]
    """Frames that each token moved time on; empty for RNN-T."""
    log_probabilities: list[float]
    text: str | None = None


@dataclass(frozen=True)
class GoldenCase:
    """One tiny checkpoint. Contexts are (left, right); signals are named as in SIGNALS."""

    name: str
    nemo_path: Path
    contexts: tuple[tuple[int, int], ...]
    max_symbols: int
    durations: tuple[int, ...]
    """TDT durations; empty for RNN-T."""
    front_end: str
    stores_filterbank: bool
    gzipped: bool

    def mel(self, signal: str) -> torch.Tensor:
        """Log-mel [N, F] of the whole signal, rounded once from float64."""
        return _array(f"front_end_{self.front_end}.npz", f"mel/{signal}")

    def window(self) -> torch.Tensor:
        """Analysis window [samples]."""
        return _array(f"front_end_{self.front_end}.npz", "window")

    def filterbank(self) -> torch.Tensor:
        """Mel filterbank [F, bins]."""
        return _array(f"front_end_{self.front_end}.npz", "filterbank")

    def encoded(self, context: tuple[int, int], signal: str) -> torch.Tensor:
        """Encoder output [T, D] of the whole signal."""
        return _array(f"{self.name}.npz", _key(context, signal))

    def greedy(self, context: tuple[int, int], signal: str) -> Greedy:
        """Greedy output for `encoded(context, signal)`."""
        entry = next(entry for entry in _json("cases.json") if entry["name"] == self.name)
        return Greedy(**entry["greedy"][_key(context, signal)])


@dataclass(frozen=True)
class GoldenUtterance:
    """One AN4 utterance with what NeMo makes of it with the bundled model."""

    path: Path
    text: str

    def greedy(self, context: tuple[int, int]) -> Greedy:
        """Greedy output, `text` included."""
        return Greedy(**_json("bundled.json")["greedy"][_key(context, self.path.stem)])

    def encoded(self, context: tuple[int, int]) -> torch.Tensor | None:
        """Encoder output [T, D]; kept for the first utterance in contexts (70, 6) and (70, 0), else None."""
        key = _key(context, self.path.stem)
        return _array("bundled.npz", key) if key in _archive("bundled.npz") else None


def golden_cases() -> list[GoldenCase]:
    """Every tiny checkpoint."""
    return [
        GoldenCase(
            name=entry["name"],
            nemo_path=GOLDEN / f"{entry['name']}.nemo",
            contexts=tuple((left, right) for left, right in entry["contexts"]),
            max_symbols=entry["max_symbols"],
            durations=tuple(entry["durations"]),
            front_end=entry["front_end"],
            stores_filterbank=entry["stores_filterbank"],
            gzipped=entry["gzipped"],
        )
        for entry in _json("cases.json")
    ]


def golden_case(name: str) -> GoldenCase:
    """The case called `name`."""
    return next(case for case in golden_cases() if case.name == name)


@dataclass(frozen=True)
class GoldenPrompted:
    """Greedy output of the checkpoint with language prompts for one signal in one language."""

    context: tuple[int, int]
    signal: str
    language: str
    tokens: list[int]
    timestamps: list[int]
    text: str
    """Without language tags."""


def golden_prompted() -> list[GoldenPrompted]:
    """All of them."""
    found = []
    for key, entry in _json("prompts.json")["greedy"].items():
        context, signal, language = key.split("/")
        left, right = map(int, context.split(","))
        found.append(GoldenPrompted((left, right), signal, language, **entry))
    return found


def golden_tags() -> list[int]:
    """The labels of that checkpoint that are language tags, ascending."""
    return _json("prompts.json")["tags"]


def golden_utterances() -> list[GoldenUtterance]:
    """The AN4 utterances, in the order of their manifest."""
    lines = (AN4 / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    return [GoldenUtterance(AN4 / entry["audio_filepath"], entry["text"]) for entry in entries]


def golden_pcm(signal: str) -> torch.Tensor:
    """16-bit samples of one signal, int16 [samples]."""
    return _array("signals.npz", signal)


def golden_samples(signal: str) -> torch.Tensor:
    """Samples of one signal as the models take them, float32 [samples] in -1 .. 1."""
    return golden_pcm(signal).float() / 32768


def _key(context: tuple[int, int], signal: str) -> str:
    return f"{context[0]},{context[1]}/{signal}"


@cache
def _json(name: str) -> dict | list:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


@cache
def _archive(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / name) as archive:
        return dict(archive)


def _array(name: str, key: str) -> torch.Tensor:
    return torch.from_numpy(_archive(name)[key].copy())
