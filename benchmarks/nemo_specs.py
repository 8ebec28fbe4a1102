"""Configurations of the tiny NeMo models that nemo_models.py builds, and the signals that they are built on.

Does not import NeMo. Signals are deterministic: voiced bursts of gliding pitch, hiss and pauses, of three lengths.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

LANGUAGES = {"en-US": 0, "en": 0, "de-DE": 3, "no": 4, "auto": 5}
_TAGS = ("<en-US>", "<de-DE>", "<nb-NO>", "<yue-Hk>")
SAMPLE_RATE_HZ = 16000
LENGTHS_SAMPLES = {"medium": 21923, "short": 4967, "long": 51200}


@dataclass(frozen=True)
class ModelSpec:
    """One tiny configuration. The defaults are the plainest one."""

    name: str
    seed: int
    hybrid: bool = True
    durations: tuple[int, ...] = ()
    norm: str = "layer_norm"
    use_bias: bool = True
    xscaling: bool = True
    untie_biases: bool = True
    mel_bins: int = 80
    factor: int = 8
    d_model: int = 24
    n_heads: int = 3
    n_layers: int = 2
    ff_expansion: int = 2
    kernel: int = 9
    channels: int = 8
    contexts: list = dataclasses.field(default_factory=lambda: [[14, 6], [12, 3], [6, 1], [5, 0]])
    predictor_layers: int = 1
    predictor_hidden: int = 16
    joint_hidden: int = 20
    activation: str = "relu"
    joint_dropout: float = 0.1
    byte_fallback: bool = False
    max_symbols: int = 10
    front_end: str = "mel80"
    preprocessor: dict = dataclasses.field(default_factory=dict)
    encoder: dict = dataclasses.field(default_factory=dict)
    """Further values of the encoder's section."""
    stores_filterbank: bool = True
    gzipped: bool = True
    languages: dict[str, int] = dataclasses.field(default_factory=dict)
    """Prompts by language; empty for a model without."""
    prompts: int = 0
    tags: tuple[str, ...] = ()
    """Pieces of the tokenizer."""
    tokenizer: bytes = b""
    """A SentencePiece model; without one, one of 48 pieces is trained."""
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    """Other texts for some of its pieces."""
    characters: str = ""
    """The labels of a character model, which has no tokenizer."""
    second_language: str = ""
    """Sentences of a second tokenizer, for `de` beside `en`."""

    @property
    def all_contexts(self) -> list[list[int]]:
        """`contexts` as a list of pairs, whichever way it is written."""
        return self.contexts if isinstance(self.contexts[0], list) else [self.contexts]

    @property
    def default_prompt(self) -> int:
        """The prompt of a stream that names no language."""
        return self.languages.get("auto", next(iter(self.languages.values())))


SPECS = (
    ModelSpec("rnnt_hybrid", seed=1),
    ModelSpec(
        "rnnt_batch_norm", seed=2, hybrid=False, norm="batch_norm", use_bias=False, xscaling=False, untie_biases=False,
        mel_bins=128, front_end="mel128", factor=4, d_model=16, n_heads=4, kernel=5, contexts=[12, 3],
        predictor_layers=2, activation="tanh", joint_dropout=0.0, stores_filterbank=False,
    ),
    ModelSpec(
        "tdt_hybrid", seed=43, durations=(0, 1, 2, 3, 4), norm="batch_norm", untie_biases=False, d_model=32, n_heads=4,
        ff_expansion=1, kernel=7, contexts=[[70, 13], [70, 6], [70, 1], [70, 0]],
    ),
    ModelSpec(
        "tdt_gaps", seed=4, hybrid=False, durations=(0, 2, 4), use_bias=False, xscaling=False, mel_bins=128,
        front_end="mel128", predictor_layers=2, contexts=[[9, 2], [8, 0]], joint_dropout=0.0,
    ),
    ModelSpec(
        "tdt_unsorted", seed=55, hybrid=False, durations=(1, 0, 3), factor=4, d_model=16, n_heads=2, kernel=5,
        contexts=[[6, 1]], byte_fallback=True, activation="sigmoid", front_end="other80",
        preprocessor={"window_size": 0.02, "preemph": 0.9, "log_zero_guard_value": 1e-6, "n_fft": 400},
    ),
    ModelSpec(
        "rnnt_bytes", seed=6, norm="batch_norm", use_bias=True, d_model=16, n_heads=2, kernel=7, channels=12,
        contexts=[[6, 0], [8, 3]], byte_fallback=True, max_symbols=3, gzipped=False, stores_filterbank=False,
    ),
)  # fmt: skip


PROMPT_SPECS = (
    ModelSpec(
        "prompt_hybrid", seed=9, contexts=[[56, 3], [56, 0], [56, 6], [56, 13]], joint_hidden=16, languages=LANGUAGES,
        prompts=7, tags=_TAGS,
    ),
    ModelSpec(
        "prompt_tdt", seed=8, hybrid=False, durations=(0, 1, 2), norm="batch_norm", factor=4, d_model=16, n_heads=2,
        contexts=[[6, 1], [6, 2]], predictor_layers=2, languages={"fr-FR": 1, "de-DE": 0}, prompts=2, tags=_TAGS[1:3],
    ),
)  # fmt: skip
"""Models with language prompts; the first also exists in Transformers format."""
MARKS_SPEC = ModelSpec(
    "tdt_marks", seed=43, durations=(0, 1, 2, 3, 4), contexts=[[14, 6], [5, 0]],
    texts={"ou": ".", "e": "?", "▁o": "▁?", "f": ",", "n": "'"},
)  # fmt: skip
"""Writes marks, also with a blank before them."""
FINE_TUNES = (
    ModelSpec(
        "rnnt_characters", seed=43, contexts=[[14, 6], [5, 0]],
        characters=" abcdefghijklmnopqrstuvwxyzé",
    ),
    ModelSpec(
        "tdt_languages", seed=43, durations=(0, 1, 2, 3, 4), contexts=[[14, 6], [5, 0]],
        second_language="drei grüne straßen und sieben weiße häuser\nzwei kühe gehen über die brücke\n" * 20,
    ),
)  # fmt: skip
"""Labels that are characters, and those of two tokenizers one after the other."""
EOU_SPEC = ModelSpec(
    "rnnt_eou", seed=76, hybrid=False, mel_bins=128, front_end="mel128", d_model=32, n_heads=4, xscaling=False,
    contexts=[70, 1], joint_dropout=0.2, tags=("<EOU>", "<EOB>"),
)  # fmt: skip
"""The architecture of parakeet_realtime_eou_120m-v1."""


def float_signals() -> dict[str, np.ndarray]:
    """`make_signals` as float32 samples, -1 .. 1."""
    return {name: samples.astype(np.float32) / 32768 for name, samples in make_signals().items()}


def make_signals() -> dict[str, np.ndarray]:
    """Name -> 16-bit samples."""
    return {name: _speech_like(seed, length) for seed, (name, length) in enumerate(LENGTHS_SAMPLES.items())}


def _speech_like(seed: int, length: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    samples = 0.003 * generator.standard_normal(length)
    start = int(generator.integers(200, 1500))
    while start < length:
        burst = _burst(generator, int(generator.integers(1500, 6000)))[: length - start]
        samples[start : start + len(burst)] += burst
        start += len(burst) + int(generator.integers(0, 3000))
    return np.round(np.clip(samples, -1, 1) * 32767).astype(np.int16)


def _burst(generator: np.random.Generator, length: int) -> np.ndarray:
    """Harmonics under two moving formants, or hiss."""
    envelope = np.sin(np.pi * np.arange(length) / length) ** 0.5 * generator.uniform(0.05, 0.4)
    if generator.random() < 0.3:
        return envelope * 0.3 * generator.standard_normal(length)
    pitch_hz = np.linspace(generator.uniform(90, 200), generator.uniform(90, 200), length)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / SAMPLE_RATE_HZ
    formants = [np.linspace(*generator.uniform(low, high, 2), length) for low, high in ((250, 900), (900, 3200))]
    voice = np.zeros(length)
    for harmonic in range(1, 30):
        gain = sum(np.exp(-(((harmonic * pitch_hz - formant) / 250) ** 2)) for formant in formants)
        voice += gain * np.sin(harmonic * phase)
    return envelope * voice / 3
