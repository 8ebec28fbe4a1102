"""Merges the JSON reports of all shards of an evaluation into that of the whole."""

from collections.abc import Sequence
from dataclasses import fields, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from penstock.errors import SettingError, shown
from penstock.evaluation.comparison import open_report
from penstock.evaluation.diarization import DiarizationErrors, SpeakerErrors
from penstock.evaluation.errors import EditCounts
from penstock.evaluation.manifest import Utterance
from penstock.evaluation.report import Conditions
from penstock.evaluation.runs import DecoderChoice, Outcome, RunResult, Variant, collect
from penstock.model.config import AttentionContext

_EQUAL = ("penstock", "server", "device", "manifests", "endpointing", "window", "precision", "normalizer")


def merge_reports(paths: Sequence[Path]) -> tuple[Conditions, list[RunResult]]:
    """The conditions of the first shard, and the runs of all shards without speeds. Shards without utterances have no
    report. Raises SettingError for reports that do not belong together, and where utterances are missing.
    """
    documents: list[dict[str, Any]] = []
    for path in paths:
        with open_report(path) as document:
            if document["shard"] is None:
                raise SettingError(f"{path} is not of a shard; accepted: reports of `penstock evaluate --shard`")
            shared = {name: document[name] for name in _EQUAL}
            shared |= {"model": document["model"] and document["model"]["config_sha256"]}
            shared |= {"runs": [(run["context"], run["decoder"]) for run in document["results"]]}
            number, shared["shards"], shared["utterances"] = itemgetter("number", "count", "utterances")(
                document["shard"]
            )
            documents.append(document | {"number": number, "shared": shared})
    first = documents[0]
    for path, document in zip(paths, documents, strict=True):
        for name, value in document["shared"].items():
            if value != first["shared"][name]:
                found = f"{paths[0]} has {shown(first['shared'][name])}, {path} has {shown(value)}"
                raise SettingError(f"{name} differs: {found}; accepted: reports of the shards of one evaluation")
    numbers = [document["number"] for document in documents]
    left_out = [line for document in documents for line in document["left_out"]]
    count = len(left_out) + sum(len(document["results"][0]["utterances"]) for document in documents)
    if len(set(numbers)) < len(numbers) or count != first["shared"]["utterances"]:
        whole = f"all {first['shared']['utterances']} of {first['shared']['shards']} shards, each once"
        raise SettingError(f"shards {numbers} have {count} utterances; accepted: {whole}")
    places = {name: place for place, name in enumerate(first["manifests"])}
    left_out.sort(key=lambda line: (places[line.rpartition(":")[0]], int(line.rpartition(":")[2])))
    runs: list[RunResult] = []
    for results in zip(*(document["results"] for document in documents), strict=True):
        rows = [row for result in results for row in result["utterances"]]
        rows.sort(key=lambda row: (places[row["manifest"]], row["line"]))
        run = _run(results[0]["context"], results[0]["decoder"], rows)
        runs.append(replace(run, elapsed_s=sum(result["elapsed_s"] for result in results)))
    conditions = {field.name: first[field.name] for field in fields(Conditions)} | {"left_out": left_out, "shard": None}
    return Conditions(**conditions | {"hardware": f"{len(documents)} shards, the first on {first['hardware']}"}), runs


def _run(context: list[int] | None, decoder: str | None, rows: Sequence[dict[str, Any]]) -> RunResult:
    """The texts of a report are normalized: they are compared as they are."""
    choice = DecoderChoice(decoder.partition(":")[0], text=decoder) if decoder else None
    utterances = [
        Utterance(
            Path(row["audio"]), row["audio_s"], row.get("reference", ""), Path(row["manifest"]), row["line"],
            row["speaker"], stated_s=row.get("duration"), offset_s=row.get("offset"),
        )
        for row in rows
    ]  # fmt: skip
    outcomes = [
        Outcome(number, row.get("hypothesis", ""), row.get("error"), remarks=tuple(row.get("remarks", ())))
        for number, row in enumerate(rows)
    ]
    run = collect(Variant(AttentionContext(*context) if context else None, choice), utterances, outcomes)
    by_speaker = [None if "error" in row else _speaker_errors(row) for row in rows]
    return replace(run, rtfx=None, cpu_rtfx=None, speaker_errors=by_speaker)


def _speaker_errors(row: dict[str, Any]) -> SpeakerErrors:
    names = [field.name for field in fields(DiarizationErrors)]
    words = row.get("speaker_words")
    counts = words and EditCounts(words["substitutions"], words["deletions"], words["insertions"], words["words"])
    times = (DiarizationErrors(*(found[name] for name in names)) for found in row.get("diarization", ()))
    return SpeakerErrors(tuple(times), counts)
