"""Guo et al., "Effective internal language model training and fusion for factorized transducer model": tables 1 and 2.

Heads are trained on the frozen encoder of the bundled offline model by `recipes.training.train_head`, and written as
bundles. Adaptation, which the paper leaves open: a head that is trained on one kind of sentences, another kind's text
for its internal language model. The kinds are told by the letters that the names of AN4's files begin with.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

from benchmarks.baselines import texts_of
from benchmarks.papers.inputs import BATCH, LM_WEIGHT, MODEL, PieceLm, texts
from benchmarks.papers.runner import Entry, Row, Settings, Streams, first, measured, wer_percent
from benchmarks.results import progress
from penstock.cli import main as penstock
from penstock.decoding.beam.search import BeamSearch
from penstock.evaluation.manifest import Utterance, read_manifest
from penstock.frontend.audio_file import read_audio
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.stream_decoders import searches
from penstock.reporting import markdown_table
from penstock.transcription.offline import OfflineRecognizer
from recipes.training.train_head import main as train_head

BEST = (0.6, 0.6)
PAIRS = ((1.0, 0.0), (1.0, 0.1), (1.0, 0.2), (1.0, 0.6), (0.6, 0.0), (1.3, 0.0), (0.0, 0.4), (0.0, 0.8), BEST)
"""Weights alpha and beta of the paper's table 2."""
RNNT, FACTORIZED, UNNORMALIZED, CONTROL, MWER = "RNN-T", "factorized", "without length normalization", "control", "MWER"
_PUBLISHED: dict[tuple[str, bool, tuple[float, float]], float] = {
    (RNNT, False, (1.0, 0.0)): 3.52, (RNNT, True, (1.0, 0.0)): 3.01,
    (FACTORIZED, False, (1.0, 0.0)): 3.50, (FACTORIZED, False, (1.0, 0.1)): 3.19,
    (FACTORIZED, False, (1.0, 0.2)): 3.06, (FACTORIZED, False, (1.0, 0.6)): 3.17,
    (FACTORIZED, False, (0.6, 0.0)): 3.88, (FACTORIZED, False, (1.3, 0.0)): 3.52,
    (FACTORIZED, False, (0.0, 0.4)): 5.12, (FACTORIZED, False, (0.0, 0.8)): 4.77,
    (FACTORIZED, False, BEST): 2.89, (UNNORMALIZED, False, BEST): 6.07,
    (MWER, False, BEST): 2.87,
}  # fmt: skip
"""WER % on LibriSpeech test-clean."""
_SHOWN = ((1.0, 0.0), (1.0, 0.2), (0.6, 0.0), (0.0, 0.8), BEST)
"""Pairs on the page; the JSON has all."""
_BEAM = 4
_WITH_LM = ", language model"
_MWER_RATE = "1e-3"
_BATCH_UTTERANCES = 16


def rows(settings: Settings) -> Iterator[Row]:
    """Heads of all sentences, then adaptation; both need `Settings.train`."""
    if settings.train is None:
        yield {"model": FACTORIZED, "unavailable": "heads need --train"}
        return
    utterances = read_manifest(settings.manifest, settings.recordings)
    yield from _fusion(settings, settings.train, utterances)
    yield from _adaptation(settings, settings.train, utterances)


def _fusion(settings: Settings, train: Path, utterances: list[Utterance]) -> Iterator[Row]:
    frames = settings.work / "frames.pt"
    frames.unlink(missing_ok=True)
    make = partial(_train, settings, train, frames)
    steps = settings.mwer_steps
    epochs = steps * _BATCH_UTTERANCES / (len(read_manifest(train)) * (1 + settings.copies))
    pair = ",".join(map(str, BEST))
    lm = DecodingConfig(lm=str(PieceLm(settings, train).write()))
    score = partial(_score, settings, utterances)
    rnnt = make("rnnt", "--kind", "standard", "--epochs", str(settings.epochs))
    yield from score(RNNT, rnnt, [(1.0, 0.0)])
    yield from score(RNNT, rnnt, [(1.0, 0.0)], lm, LM_WEIGHT)
    head = make("ft", "--pair", "1,0", "--epochs", str(settings.epochs))
    yield from score(FACTORIZED, head, PAIRS)
    with patch.object(searches, "BeamSearch", partial(BeamSearch, is_normalized=False)):
        unnormalized = score(UNNORMALIZED, head, [BEST])
    yield from unnormalized
    further = ("--init", str(head), "--pair", pair)
    control = make("control", *further, "--epochs", str(epochs), "--learning-rate", _MWER_RATE)
    yield from score(CONTROL, control, [BEST])
    mwer = make("mwer", *further, "--epochs", "0", "--mwer", str(steps), "--mwer-learning-rate", _MWER_RATE)
    yield from score(MWER, mwer, [BEST])


def _train(settings: Settings, train: Path, frames: Path | None, name: str, *options: str) -> Path:
    """Writes the bundle of a new head."""
    out = settings.work / name
    progress(f"training {name}")
    arguments = ["--model", str(MODEL), "--train", str(train), "--out", str(out), "--force", "--copies",
                 str(settings.copies), "--threads", str(settings.threads), *options]  # fmt: skip
    if train_head([*arguments, *(("--frames", str(frames)) if frames else ())]):
        raise RuntimeError(f"{name} could not be trained")
    return out


def _score(
    settings: Settings,
    utterances: Sequence[Utterance],
    model: str,
    bundle: Path,
    pairs: Sequence[tuple[float, float]],
    decoding: DecodingConfig | None = None,
    lm_weight: float = 0.0,
    case: Mapping[str, object] | None = None,
) -> list[Row]:
    """Word errors by ALSD++ with each pair."""
    recognizer = OfflineRecognizer(bundle, BATCH, settings.device, decoding or DecodingConfig())
    audio = [read_audio(utterance.audio, recognizer.sample_rate_hz) for utterance in utterances]
    entries = []
    for pair in pairs:
        options: dict[str, object] = {"decoder": "alsd", "beam_size": _BEAM}
        options |= {"lm_weight": lm_weight} if lm_weight else {}
        options |= {} if model == RNNT else dict(zip(("ilm_alpha", "ilm_beta"), pair, strict=True))
        row = {"model": model, "pair": list(pair), "lm": bool(lm_weight), **(case or {})}
        entries.append(Entry(row, partial(recognizer.transcribe, audio, options), texts_of))
    streams = Streams(sum(utterance.audio_s for utterance in utterances), None, [u.reference for u in utterances])
    return measured(entries, streams, 1, settings.device)


def _adaptation(settings: Settings, train: Path, utterances: list[Utterance]) -> Iterator[Row]:
    """A head of the rarer kind of sentences, its internal language model adapted to the other kind."""
    kinds = sorted({kind_of(one.audio) for one in read_manifest(train)} & {kind_of(one.audio) for one in utterances})
    if len(kinds) != 2:
        yield {"model": "adaptation", "unavailable": f"the recordings are of {len(kinds)} kinds, not of two"}
        return
    new, old = kinds  # of AN4: an, spelled words and numbers; cen, names, addresses and dates
    manifests = {kind: _of_kind(settings, train, kind) for kind in kinds}
    head = _train(settings, manifests[old], None, f"ft-{old}", "--pair", "1,0", "--epochs", str(settings.epochs))
    paths = {kind: settings.work / f"{kind}.txt" for kind in kinds}
    for kind, path in paths.items():
        path.write_text("\n".join(texts(manifests[kind])) + "\n", encoding="utf-8")
    adapted = settings.work / f"ft-{old}-{new}"
    status = penstock(["adapt", "--model", str(head), "--text", str(paths[new]), "--keep", str(paths[old]), "--out",
                       str(adapted), "--force", "--steps", str(settings.ilm_steps)])  # fmt: skip
    for model, bundle in (("not adapted", head), ("adapted", adapted)):
        if bundle == adapted and status:
            yield {"model": model, "unavailable": "the perplexity did not improve"}
            continue
        for kind, role in ((new, "new"), (old, "old")):
            chosen = [one for one in utterances if kind_of(one.audio) == kind]
            yield from _score(settings, chosen, model, bundle, [(1.0, 0.0), BEST], case={"domain": role, "kind": kind})


def kind_of(audio: Path) -> str:
    """The letters that the file's name begins with."""
    found = re.match("[a-z]*", audio.name)
    return found[0] if found else ""


def _of_kind(settings: Settings, train: Path, kind: str) -> Path:
    path = settings.work / f"train-{kind}.jsonl"
    chosen = [one for one in read_manifest(train) if kind_of(one.audio) == kind]
    lines = [
        json.dumps({"audio_filepath": str(one.audio.absolute()), "duration": one.audio_s, "text": one.reference,
                    "speaker": one.speaker})
        for one in chosen
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown, with the paper's figures."""
    base = first(rows, model=FACTORIZED, pair=[1.0, 0.0])
    lines: list[list[object]] = []
    names = [*(case for case in _PUBLISHED if case[2] in _SHOWN), (CONTROL, False, BEST)]
    for model, has_lm, pair in names:
        clean = _PUBLISHED.get((model, has_lm, pair))
        row = first(rows, model=model, lm=has_lm, pair=list(pair), domain=None)
        eq_4 = _PUBLISHED[FACTORIZED, False, (1.0, 0.0)]
        lines.append([
            f"{model}{_WITH_LM if has_lm else ''}", *(("", "") if model == RNNT else (f"{one:g}" for one in pair)),
            clean or "-", clean / eq_4 if clean else "-", f"{wer_percent(row):.2f}" if row else "-",
            row["errors"] / base["errors"] if row and base and base["errors"] else "-",
        ])  # fmt: skip
    head = ["", "alpha", "beta", "paper: WER %", "ratio", "here: WER %", "ratio"]
    words = f"; {base['words']} words" if base else ""
    yield (
        f"Tables 1 and 2, ALSD++ with a beam of {_BEAM}{words}. Ratios are to the WER by equation 4 (1, 0). The "
        "language model is in the paper a neural one of 100 M with the ILM subtracted, here an n-gram model.\n\n"
        f"{markdown_table(head, lines, left=1)}"
    )
    adapted = [row for row in rows if row.get("domain") and "rounds_s" in row]
    if adapted:
        cell: Callable[[Row | None], str] = lambda row: f"{wer_percent(row):.1f}" if row else "-"  # noqa: E731
        body = [
            [model, *(cell(first(adapted, model=model, domain=domain, pair=list(pair)))
                      for domain in ("new", "old") for pair in ((1.0, 0.0), BEST))]
            for model in ("not adapted", "adapted")
        ]  # fmt: skip
        head = ["", "new domain: equation 4", "equation 5", "old domain: equation 4", "equation 5"]
        yield (
            "Adaptation to text of a head trained on the old domain: WER in %, by equation 5 with "
            f"{BEST[0]:g}, {BEST[1]:g}.\n\n{markdown_table(head, body, left=1)}"
        )
