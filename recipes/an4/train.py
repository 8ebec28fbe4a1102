"""Trains the demonstration models (RNN-T and TDT on one encoder) and writes .nemo files (docs/training.md).

Needs the extra `train`. Data: NeMo manifests (audio_filepath, text, speaker), for example from recipes/an4/prepare.py.
Run again with the same --out to resume.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from penstock.model.bundle import Checkpoint
from recipes.an4.demo_model import (
    TDT_DURATIONS,
    UNLIMITED,
    DemoModelConfig,
    build_model,
    condition_input,
    release_input,
    set_label_priors,
    share_encoder,
    standardize_subsampling,
    train_tokenizer,
)
from recipes.an4.export_nemo import export_nemo
from recipes.an4.features import FeatureCache
from recipes.an4.made_utterances import Recombiner, Synthesizer
from recipes.an4.monitoring import STREAMING, Validation
from recipes.an4.warm_start import WarmStart
from recipes.training.augmentation import GENTLE, Augmenter
from recipes.training.batches import (
    Batch,
    BatchMaker,
    Curriculum,
    Recording,
    Source,
    Utterance,
    normalized,
    read_recordings,
)
from recipes.training.sounds import sound_effect
from recipes.training.trainer import Trainer, TrainerConfig

RNNT, TDT = "rnnt", "tdt"
DURATIONS = {RNNT: (), TDT: TDT_DURATIONS}
MIN_BATCH_S = 8.0
"""A run of utterances of at least 5 s has to fit."""


def main() -> None:
    """Command line: prepares the data (once), trains, exports."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(arguments.seed)
    random = np.random.default_rng(arguments.seed)
    cache = FeatureCache(arguments.out / "features")
    real = cache.load("train", lambda: [r for path in arguments.train for r in read_recordings(path)], align=True)
    noises = _noises(arguments, cache, random)
    synthetic = _synthetic(arguments, cache, [u.words for u in real if u.words])
    models = _models(arguments, real)
    durations = {name: DURATIONS[name] for name in models}
    config = TrainerConfig(arguments.steps, arguments.minutes, arguments.learning_rate)
    trainer = Trainer(models, durations, config)
    initial = {name: values.clone() for name, values in trainer.module.state_dict().items()}
    state = arguments.out / "state.pt"
    if state.exists():
        trainer.load(state)
        random = np.random.default_rng((arguments.seed, trainer.step))  # fresh draws, not those already seen
        print(f"resuming at step {trainer.step}, {trainer.elapsed_s / 60:.1f} min")
    encode = next(iter(models.values())).tokenizer.text_to_ids
    augmenter = Augmenter(GENTLE, noises, random)
    frames = round(100 * arguments.batch_s)
    early, sources = _sources(real, synthetic, augmenter, random, arguments)
    maker = BatchMaker(
        early, augmenter, encode, random, frames, is_normalized=arguments.offline, joined=arguments.joined
    )
    maker.padded = arguments.padded
    curriculum = Curriculum(maker, augmenter, early, sources)
    validation = Validation(arguments.validation, [UNLIMITED] if arguments.offline else STREAMING)
    _train(trainer, models, iter(maker), curriculum, validation, arguments.out)
    _export(trainer, models, arguments.out, initial, arguments.keep)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="manifests to train on")
    parser.add_argument("--validation", type=Path, help="manifest for validation; not used for training")
    parser.add_argument("--noise", type=Path, nargs="*", default=[], help="manifests of audio without speech")
    parser.add_argument("--out", type=Path, required=True, help="folder for features, state, curve and .nemo files")
    parser.add_argument(
        "--init", type=Path, nargs="+", default=[], metavar="MODEL",
        help="initial tokenizer and weights: a .nemo file or a bundle; of others only the heads",
    )  # fmt: skip
    parser.add_argument("--offline", action="store_true", help="train an offline encoder: full attention, centered")
    parser.add_argument(
        "--models",
        nargs="+",
        choices=DURATIONS,
        help=f"heads to train; default: {' '.join(DURATIONS)}, with --offline {TDT}",
    )
    parser.add_argument("--synthetic", type=int, default=3000, help="utterances from espeak-ng and flite; 0 for none")
    parser.add_argument("--vocabulary", type=int, default=64, help="BPE pieces")
    parser.add_argument(
        "--speech-free", type=float, default=0.05, metavar="SHARE", help="share of samples without speech"
    )
    parser.add_argument(
        "--joined", type=float, default=0.0, metavar="SHARE", help="share of rows with two to four utterances"
    )
    parser.add_argument(
        "--padded", type=float, default=0.0, metavar="SHARE", help="share of rows within 1 to 60 s of silence"
    )
    parser.add_argument(
        "--keep",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the initial weights in the mean that is written",
    )
    parser.add_argument("--steps", type=int, default=TrainerConfig.steps)
    parser.add_argument("--minutes", type=float, help="train for this time instead of --steps")
    parser.add_argument("--batch-s", type=float, default=32.0, help="audio seconds per step, padding included")
    parser.add_argument("--learning-rate", type=float, default=TrainerConfig.peak_learning_rate)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.models = arguments.models or ([TDT] if arguments.offline else list(DURATIONS))
    if arguments.batch_s < MIN_BATCH_S:
        parser.error(f"--batch-s: {arguments.batch_s:g}, expected at least {MIN_BATCH_S:g}")
    return arguments


def _noises(arguments: argparse.Namespace, cache: FeatureCache, random: np.random.Generator) -> list[np.ndarray]:
    recorded = cache.load("noise", lambda: [r for path in arguments.noise for r in read_recordings(path)])
    made = cache.load("effects", lambda: [Recording(sound_effect(random), (), "") for _ in range(150)])
    return [u.mel for u in recorded] * 6 + [u.mel for u in made]


def _synthetic(arguments: argparse.Namespace, cache: FeatureCache, shapes: list[tuple[str, ...]]) -> list[Utterance]:
    if not arguments.synthetic:
        return []
    synthesizer = Synthesizer(shapes, np.random.default_rng(arguments.seed + 1))

    def speak_all() -> list[Recording]:
        return [synthesizer.speak() for _ in tqdm(range(arguments.synthetic), desc="synthetic speech", unit="utt")]

    return cache.load(f"synthetic-{arguments.synthetic}", speak_all)


def _models(arguments: argparse.Namespace, real: list[Utterance]) -> dict[str, torch.nn.Module]:
    """Models by name; all share the first one's encoder and CTC head."""
    tokenizer = arguments.out / "tokenizer"
    transcripts = [" ".join(u.words) for u in real]
    starts = [WarmStart(path) for path in _initial_nemo(arguments)]
    if starts:
        starts[0].write_tokenizer(tokenizer)
    elif not (tokenizer / "tokenizer.model").exists():
        train_tokenizer(transcripts, tokenizer, arguments.vocabulary)
    config = DemoModelConfig(is_offline=arguments.offline)
    models = {name: build_model(config, tokenizer, DURATIONS[name]) for name in arguments.models}
    first, *others = models.values()
    logs = [u.mel for u in real[::5]]
    mels = [normalized(mel) for mel in logs] if arguments.offline else logs
    if not starts:
        standardize_subsampling(first, mels)
    for name, model in models.items():
        if starts:
            start = next((each for each in starts if each.durations == DURATIONS[name]), starts[0])
            start.copy_to(model, logs)
        else:
            set_label_priors(model, transcripts)
    condition_input(first, mels)
    for other in others:
        share_encoder(first, other)
    return {name: model.to(arguments.device) for name, model in models.items()}


def _initial_nemo(arguments: argparse.Namespace) -> list[Path]:
    """`--init` as .nemo files; those of bundles are written into `--out`."""
    paths = []
    for number, given in enumerate(arguments.init):
        path = arguments.out / f"init-{number}.nemo" if given.is_dir() else given
        if given.is_dir():
            export_nemo(Checkpoint(given), path)
        paths.append(path)
    return paths


def _sources(
    real: list[Utterance],
    synthetic: list[Utterance],
    augmenter: Augmenter,
    random: np.random.Generator,
    arguments: argparse.Namespace,
) -> tuple[list[Source], list[Source]]:
    """The early sources (half synthetic speech, the rest excerpts and plain utterances), and the whole mixture: real
    utterances whole, recombined and in long runs; sounds without speech; synthetic utterances."""
    recombiner = Recombiner(real, random)
    longest = min(1800, round(100 * arguments.batch_s))

    def draw(utterances: list[Utterance]) -> Callable[[], Utterance]:
        return lambda: utterances[random.integers(len(utterances))]

    sources = [
        Source(0.40, draw(real)),
        Source(0.33, recombiner.words),
        Source(0.06, lambda: recombiner.run(int(random.integers(500, longest)))),
        Source(arguments.speech_free, lambda: Utterance(augmenter.noise(int(random.integers(60, 500))), (), "noise")),
    ]
    if synthetic:
        sources.append(Source(0.16, draw(synthetic)))
    early = [Source(0.3, draw(real))]
    if synthetic:  # each voice repeats a word exactly, so an alignment is found here first
        early.append(Source(0.5, draw(synthetic)))
    if any(utterance.spans for utterance in real):
        early.append(Source(0.2, lambda: recombiner.excerpt(3)))
    return early, sources


def _train(
    trainer: Trainer,
    models: dict[str, torch.nn.Module],
    batches: Iterator[Batch],
    curriculum: Curriculum,
    validation: Validation,
    out: Path,
) -> None:
    bar = tqdm(total=100.0, initial=100 * trainer.progress, unit="%", bar_format="{l_bar}{bar}| {postfix}")

    def report(point: dict) -> None:
        bar.n = 100 * trainer.progress
        shown = {name: f"{value:.3g}" for name, value in point.items() if name not in ("learning_rate", "norm")}
        bar.set_postfix(shown)
        with (out / "curve.jsonl").open("a") as file:
            file.write(json.dumps(point) + "\n")

    def measured() -> dict[str, float]:
        trainer.average.swap(trainer.module)
        found = validation(models)
        trainer.average.swap(trainer.module)
        return found

    trainer.run(batches, report, lambda: trainer.save(out / "state.pt"), measured, curriculum.set_stage)
    bar.close()


@torch.no_grad()
def _export(
    trainer: Trainer, models: dict[str, torch.nn.Module], out: Path, initial: dict[str, torch.Tensor], keep: float
) -> None:
    """Writes the averaged weights, or their mean with a share `keep` of the initial ones (arXiv 2109.01903)."""
    trainer.average.swap(trainer.module)
    for name, values in trainer.module.state_dict().items():
        if keep and values.is_floating_point():
            values.lerp_(initial[name], keep)
    release_input(next(iter(models.values())))
    for name, model in models.items():
        model.save_to(str(out / f"{name}.nemo"))
        print(f"wrote {out / name}.nemo")


if __name__ == "__main__":
    main()
