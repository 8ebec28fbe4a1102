"""Measures the bundled streaming models anew, and writes their tables in docs/ and in their cards.

    python -m scripts.bundled_figures an4/dev.jsonl an4/train.jsonl [--speech-free "NAME=MANIFEST" ...]

`make bundled-figures` also makes the golden data of tests from their weights. Rates of one run follow from the weights
alone, but for the last bits of a CPU.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.results import replace_parts, without_padding
from penstock.reporting import markdown_table

ROOT = Path(__file__).resolve().parents[1]
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
MODELS = {"RNN-T": "an4-rnnt-hybrid", "TDT": "an4-tdt-hybrid"}
CONTEXTS = ("[70,13]", "[70,6]", "[70,1]", "[70,0]")
ORDERS = 10
ALSD, AES = "alsd:beam=4", "aes:beam=4"
_MAKER = "scripts/bundled_figures.py"
JOINED = ("--join", "7", "--pause", "1", "--endpoint-silence-ms", "800", "--endpoint-state")
Results = dict[tuple[str, str], dict[str, Any]]
"""Results of one model, by context and decoder, as in the JSON of `penstock evaluate`."""


class Bench:
    """Evaluations of the bundled models on one development set."""

    def __init__(self, dev: Path, lm: Path, speech_free: dict[str, Path], folder: Path):
        """lm: a 3-gram of the training text; folder: for manifests and results."""
        self._dev, self._folder = dev, folder
        self.with_lm = (f"greedy:lm={lm},lm_weight=0.2", f"{ALSD},lm={lm},lm_weight=0.1")
        """Decoders with the 3-gram."""
        self.speech_free = {
            name: {model: self._evaluate(model, path, "all", ["greedy"]) for model in MODELS.values()}
            for name, path in speech_free.items()
        }
        decoders = ["greedy", ALSD, AES, *self.with_lm, "ctc"]
        self.alone = {model: self._evaluate(model, dev, "all", decoders) for model in MODELS.values()}
        self.put_together = {
            model: self._evaluate(model, dev, "all", ["greedy"], "--join", "10") for model in MODELS.values()
        }

    def joined(self, model: str, state: str) -> list[Results]:
        """Results for each order of the utterances, joined seven at a time.

        state: the decoder's after endpoints, carry or reset.
        """
        lines = self._dev.read_text(encoding="utf-8").splitlines()
        return [
            self._evaluate(model, self._order(lines, seed), "70,6 70,1", ["greedy", ALSD, "ctc"], *JOINED, state)
            for seed in range(1, ORDERS + 1)
        ]

    def _order(self, lines: Sequence[str], seed: int) -> Path:
        """A manifest of the same utterances in a random order."""
        entries = [json.loads(line) for line in lines]
        random.Random(seed).shuffle(entries)
        for entry in entries:
            entry["audio_filepath"] = str(self._dev.parent.resolve() / entry["audio_filepath"])
        path = self._folder / f"order-{seed}.jsonl"
        path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")
        return path

    def _evaluate(self, model: str, manifest: Path, contexts: str, decoders: Iterable[str], *options: str) -> Results:
        report = self._folder / "report.json"
        command = [PENSTOCK, "evaluate", str(manifest), "--model", str(ROOT / "models" / model)]
        command += [word for context in contexts.split() for word in ("--context", context)]
        command += [word for decoder in decoders for word in ("--decoder", decoder)]
        subprocess.run([*command, *options, "--json", str(report), "--force"], check=True, stdout=subprocess.DEVNULL)
        results = json.loads(report.read_text(encoding="utf-8"))["results"]
        return {("[{},{}]".format(*one["context"]), one["decoder"]): one for one in results}


def card(bench: Bench, model: str) -> str:
    """The figures of a model's card."""
    alone = bench.alone[model]

    def greedy(context: str) -> str:
        speech = alone[context, "greedy"]["speech"]
        low, high = speech["wer_interval_95"]
        return f"{_percent(speech['wer'])} ({_percent(low)} to {_percent(high)})"

    rows = [
        ("WER %, greedy (95 % interval)", *map(greedy, CONTEXTS)),
        ("WER %, ALSD++ beam 4", *(_wer(alone[context, ALSD]) for context in CONTEXTS)),
        ("CER %, greedy", *(_percent(alone[context, "greedy"]["speech"]["cer"]) for context in CONTEXTS)),
        (
            "WER %, ten utterances put together (`--join 10`)",
            *(_wer(bench.put_together[model][context, "greedy"]) for context in CONTEXTS),
        ),
    ]
    for name, results in bench.speech_free.items():
        counts = [results[model][context, "greedy"]["speech_free"] for context in CONTEXTS]
        rows.append((f"Words per minute on {name}", *(f"{each['inserted_words_per_minute']:.1f}" for each in counts)))
    return markdown_table(("Context", *CONTEXTS), rows, left=1)


def training(bench: Bench) -> str:
    """WER of greedy search, for docs/training.md."""
    rows = [
        (f"**{name}, bundled**", *(_wer(bench.alone[model][context, "greedy"]) for context in CONTEXTS))
        for name, model in MODELS.items()
    ]
    return markdown_table(("AN4 dev, greedy, WER %", *CONTEXTS), rows, left=1)


def decoders(bench: Bench) -> str:
    """WER of the searches, for docs/decoding.md."""
    names = {
        "`greedy`": "greedy",
        "`alsd`": ALSD,
        "`aes`": AES,
        "`greedy`, 3-gram of the training text, weight 0.2": bench.with_lm[0],
        "`alsd`, the same, weight 0.1": bench.with_lm[1],
    }
    columns = [(name, model, context) for name, model in MODELS.items() for context in ("[70,6]", "[70,0]")]
    rows = [
        (title, *(_wer(bench.alone[model][context, decoder]) for _, model, context in columns))
        for title, decoder in names.items()
    ]
    return markdown_table(("", *(f"{name} {context}" for name, _, context in columns)), rows, left=1)


def endpoints(bench: Bench) -> str:
    """WER of joined utterances, for docs/endpointing.md: the mean over the orders."""
    found = {(model, state): bench.joined(model, state) for model in MODELS.values() for state in ("carry", "reset")}

    def cells(model: str, decoder: str) -> tuple[str, ...]:
        runs = [[bench.alone[model]], found[model, "carry"], found[model, "reset"]]
        return tuple(
            " / ".join(
                _percent(mean(results[context, decoder]["speech"]["wer"] for results in each))
                for context in ("[70,6]", "[70,1]")
            )
            for each in runs
        )

    rows = [
        (f"`{model}`, {'greedy' if decoder == 'greedy' else f'`{decoder}`'}", *cells(model, decoder))
        for model in MODELS.values()
        for decoder in ("greedy", ALSD)
    ]
    rows.append(("both (they share encoder and CTC head), `ctc`", *cells(MODELS["RNN-T"], "ctc")))
    return markdown_table(("model, decoder", "utterances alone", "`carry`", "`reset`"), rows, left=1)


TABLES: dict[str, tuple[str, Callable[[Bench], str]]] = {
    "docs/training.md": ("training", training),
    "docs/decoding.md": ("decoders", decoders),
    "docs/endpointing.md": ("endpoints", endpoints),
    **{f"models/{name}/README.md": ("card", lambda bench, name=name: card(bench, name)) for name in MODELS.values()},
}
"""By file, the name of the generated part and what makes it."""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dev", type=Path, help="manifest of the development set")
    parser.add_argument("train", type=Path, help="manifest whose text the language model is made of")
    parser.add_argument(
        "--speech-free", action="append", default=[], metavar="NAME=MANIFEST", help="recordings without speech"
    )
    arguments = parser.parse_args()
    speech_free = {name: Path(path) for name, _, path in (each.rpartition("=") for each in arguments.speech_free)}
    with tempfile.TemporaryDirectory() as folder:
        lm = _language_model(arguments.train, Path(folder))
        bench = Bench(arguments.dev, lm, speech_free, Path(folder))
        for name, (part, make) in TABLES.items():
            text = (ROOT / name).read_text(encoding="utf-8")
            text = replace_parts(text, _MAKER, {part: f"\n{without_padding(make(bench))}\n\n"})
            (ROOT / name).write_text(text, encoding="utf-8")
            print(f"wrote {name}")


def _language_model(train: Path, folder: Path) -> Path:
    texts = [json.loads(line)["text"] for line in train.read_text(encoding="utf-8").splitlines() if line]
    text, lm = folder / "train.txt", folder / "lm.arpa"
    text.write_text("".join(f"{one}\n" for one in texts), encoding="utf-8")
    command = [PENSTOCK, "lm", "build", "--model", str(ROOT / "models" / MODELS["RNN-T"])]
    subprocess.run(
        [*command, "--order", "3", "--out", str(lm), "--force", str(text)], check=True, stdout=subprocess.DEVNULL
    )
    return lm


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _wer(result: dict[str, Any]) -> str:
    return _percent(result["speech"]["wer"])


if __name__ == "__main__":
    main()
