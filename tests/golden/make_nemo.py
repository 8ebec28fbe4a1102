"""Makes tests/golden/: tiny NeMo checkpoints and what NeMo computes with them. Needs NeMo (extra `oracle`).

    python -m tests.golden.make_nemo                # the tiny models and the front ends
    python -m tests.golden.make_nemo --prompts      # the tiny model with language prompts
    python -m tests.golden.make_nemo --bundled      # the bundled model on tests/data/an4

tests/helpers/golden.py describes the files and reads them without NeMo. Everything is seeded; a run on another
machine changes floating-point values in the last digits only.
"""

import argparse
import gzip
import io
import json
import re
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import soundfile
import torch
from nemo.collections.asr.models import ASRModel

from benchmarks.nemo_models import Greedy, build_model, decode, encode, mel_float64, prompted, token_log_probabilities
from benchmarks.nemo_specs import PROMPT_SPECS, SPECS, ModelSpec, float_signals, make_signals
from penstock.model.bundle import Checkpoint
from recipes.an4.export_nemo import export_nemo

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
AN4 = ROOT / "tests" / "data" / "an4"
PERTURBATION = 1e-4  # tolerance of encoder output; tokens must not depend on smaller differences


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", action="store_true", help="only the model with language prompts")
    parser.add_argument("--bundled", action="store_true", help="only the golden data of the bundled model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    GOLDEN.mkdir(exist_ok=True)
    if arguments.bundled:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bundled.nemo"
            export_nemo(Checkpoint(ROOT / "models" / "an4-rnnt-hybrid"), path)
            make_bundled(path)
    elif arguments.prompts:
        make_prompts()
    else:
        make_tiny()
        make_prompts()
    total = sum(path.stat().st_size for path in GOLDEN.rglob("*"))
    print(f"{GOLDEN}: {total / 1e6:.2f} MB")


def make_tiny() -> None:
    """One .nemo and one .npz for each of SPECS, one .npz for each front end."""
    signals = float_signals()
    np.savez_compressed(GOLDEN / "signals.npz", **make_signals())
    index, front_ends = [], {}
    with tempfile.TemporaryDirectory() as workspace:
        for spec in SPECS:
            model = build_model(spec, Path(workspace), signals)
            save_nemo(model, spec, Path(workspace))
            front_ends.setdefault(spec.front_end, model)
            index.append(_case(spec, model, signals))
    for name, model in front_ends.items():
        _front_end(name, model, signals)
    write_json(GOLDEN / "cases.json", index)


def make_prompts() -> None:
    """A .nemo with language prompts, and its greedy output in two contexts and three languages."""
    signals = float_signals()
    spec, greedy = PROMPT_SPECS[0], {}
    with tempfile.TemporaryDirectory() as workspace:
        model = build_model(spec, Path(workspace), signals)
        save_nemo(model, spec, Path(workspace))
    model.decoding.set_strip_lang_tags(True, r"\s*<[a-z]{2,3}-[A-Za-z]{2}>")
    for context in spec.all_contexts[:2]:
        for name, samples in signals.items():
            encoded = encode(model, samples, context)[1]
            for language in ("en-US", "de-DE", "auto"):
                found = _greedy(model, prompted(model, encoded, spec.languages[language]))
                text = model.decoding.decode_tokens_to_str_with_strip_punctuation(found["tokens"])
                key = f"{context[0]},{context[1]}/{name}/{language}"
                greedy[key] = {"tokens": found["tokens"], "timestamps": found["timestamps"], "text": text}
    tags = {model.tokenizer.tokens_to_ids([tag])[0] for tag in spec.tags}
    if not tags & {token for one in greedy.values() for token in one["tokens"]}:
        raise SystemExit(f"{spec.name}: no language tags: use another seed")
    write_json(GOLDEN / "prompts.json", {"languages": spec.languages, "tags": sorted(tags), "greedy": greedy})


def save_nemo(model: ASRModel, spec: ModelSpec, workspace: Path) -> Path:
    """Saves without the bulky artifacts, gzipped or not, with or without the filterbank."""
    full, target = workspace / "full.nemo", GOLDEN / f"{spec.name}.nemo"
    model.save_to(str(full))
    plain = io.BytesIO()
    with tarfile.open(full) as source, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as copy:
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            data = source.extractfile(member).read() if member.isfile() else b""
            if member.name.endswith("model_weights.ckpt") and not spec.stores_filterbank:
                data = _without_filterbank(data)
            if member.name.endswith("model_config.yaml"):
                data = data.replace(str(workspace).encode(), b"workspace")
            info = tarfile.TarInfo(member.name)
            info.size, info.type, info.mode = len(data), member.type, member.mode
            copy.addfile(info, io.BytesIO(data))
    data = plain.getvalue()
    target.write_bytes(gzip.compress(data, mtime=0) if spec.gzipped else data)
    return target


def _without_filterbank(weights: bytes) -> bytes:
    state = torch.load(io.BytesIO(weights), weights_only=True)
    buffer = io.BytesIO()
    torch.save({name: t for name, t in state.items() if not name.startswith("preprocessor.")}, buffer)
    return buffer.getvalue()


def _case(spec: ModelSpec, model: ASRModel, signals: dict[str, np.ndarray]) -> dict:
    arrays, greedy = {}, {}
    counts: Counter = Counter()
    for context in spec.all_contexts:
        for name, samples in signals.items():
            key = f"{context[0]},{context[1]}/{name}"
            encoded = encode(model, samples, context)[1]
            arrays[key] = encoded.numpy().astype(np.float32)
            greedy[key] = _greedy(model, encoded)
            per_frame = Counter(greedy[key]["timestamps"])
            counts.update(min(per_frame[frame], spec.max_symbols) for frame in range(len(encoded)))
    _require_natural(spec, counts, greedy)
    np.savez_compressed(GOLDEN / f"{spec.name}.npz", **arrays)
    print(f"{spec.name}: frames by labels {dict(sorted(counts.items()))}")
    return {
        "name": spec.name,
        "front_end": spec.front_end,
        "gzipped": spec.gzipped,
        "stores_filterbank": spec.stores_filterbank,
        "contexts": spec.all_contexts,
        "max_symbols": spec.max_symbols,
        "durations": list(spec.durations),
        "greedy": greedy,
    }


def _greedy(model: ASRModel, encoded: torch.Tensor) -> dict:
    """NeMo's greedy output, checked not to depend on rounding errors."""
    result = decode(model, encoded)
    noise = torch.Generator().manual_seed(0)
    for _ in range(3):
        perturbed = encoded + PERTURBATION * torch.randn(encoded.shape, generator=noise)
        other = decode(model, perturbed)
        same = (other.tokens, other.timestamps, other.durations) == (result.tokens, result.timestamps, result.durations)
        if not same:
            raise SystemExit("a token depends on less than the encoder's tolerance: use another seed")
    return _as_json(model, encoded, result)


def _as_json(model: ASRModel, encoded: torch.Tensor, result: Greedy) -> dict:
    log_probabilities = token_log_probabilities(model, encoded, result)
    if not result.durations and abs(sum(log_probabilities) - result.score) > 1e-3:
        raise SystemExit(f"scores disagree: {sum(log_probabilities)} and {result.score}")
    return {
        "tokens": result.tokens,
        "timestamps": result.timestamps,
        "durations": result.durations,
        "log_probabilities": [round(value, 6) for value in log_probabilities],
    }


def _require_natural(spec: ModelSpec, counts: Counter, greedy: dict) -> None:
    """Most frames blank, some with one label, some with several; different labels; every duration used."""
    frames = sum(counts.values())
    tokens = Counter(token for one in greedy.values() for token in one["tokens"])
    durations = {duration for one in greedy.values() for duration in one["durations"]}
    needed = {
        "mostly blank": 0.4 < counts[0] / frames < 0.95,
        "single labels": counts[1] > 0,
        "several labels on a frame": sum(counts[n] for n in counts if n > 1) > 0,
        "few frames full": counts[spec.max_symbols] < 0.2 * frames,
        "different labels": len(tokens) >= 4,
        "every duration": durations == set(spec.durations),
    }
    failed = [name for name, passed in needed.items() if not passed]
    if failed:
        raise SystemExit(f"{spec.name}: not natural ({', '.join(failed)}): {counts}, {durations}: use another seed")


def _front_end(name: str, model: ASRModel, signals: dict[str, np.ndarray]) -> None:
    """Mel in float64, rounded once: no bit of it depends on the CPU."""
    featurizer = model.preprocessor.featurizer
    arrays = {f"mel/{key}": mel_float64(model, samples).float().numpy() for key, samples in signals.items()}
    arrays |= {"window": featurizer.window.numpy(), "filterbank": featurizer.fb[0].numpy()}
    np.savez_compressed(GOLDEN / f"front_end_{name}.npz", **arrays)


def make_bundled(path: Path) -> None:
    """Greedy output in every context for tests/data/an4; path: of the bundle as a NeMo file."""
    model = ASRModel.restore_from(str(path), map_location="cpu").eval()
    entries = [json.loads(line) for line in (AN4 / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    arrays, greedy = {}, {}
    for number, entry in enumerate(entries):
        samples = soundfile.read(AN4 / entry["audio_filepath"], dtype="float32")[0]
        for context in model.encoder.att_context_size_all:
            key = f"{context[0]},{context[1]}/{Path(entry['audio_filepath']).stem}"
            encoded = encode(model, samples, context)[1]
            greedy[key] = _greedy(model, encoded)
            greedy[key]["text"] = model.tokenizer.ids_to_text(greedy[key]["tokens"])
            if number == 0 and context[1] in (0, 6):
                arrays[key] = encoded.numpy()
    np.savez_compressed(GOLDEN / "bundled.npz", **arrays)
    write_json(GOLDEN / "bundled.json", {"greedy": greedy})
    print(f"{len(greedy)} results")


def write_json(path: Path, document: object) -> None:
    """JSON with one line for each innermost list."""
    text = json.dumps(document, indent=1)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
