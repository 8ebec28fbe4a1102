"""The result of the decoder benchmark as JSON, and tables made from that JSON."""

import dataclasses
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.measure import Figures, Plan, paired_ratio
from benchmarks.results import describe
from benchmarks.systems import CHUNKS, LABEL_LOOPING, NEMO, WHOLE, Unavailable, Variant
from benchmarks.workload import Workload
from penstock.reporting import markdown_table, three_digits
from penstock.version import __version__

FORMAT, FORMAT_VERSION = "penstock-decoding-benchmark", 2
_VARIANT_FIELDS = [field.name for field in dataclasses.fields(Variant)]
_LINE_WIDTH = 120


@dataclass
class Part:
    """Results of one workload."""

    workload: Workload
    unavailable: list[Unavailable]
    figures: list[Figures]


def document(environment: dict, plan: Plan, parts: Sequence[Part]) -> dict:
    """The result as JSON values; docs/internals/benchmark_decoding.md lists the fields."""
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "penstock": __version__,
        **environment,
        "plan": plan._asdict(),
        "workloads": [_part(part) for part in parts],
    }


def _part(part: Part) -> dict:
    workload = part.workload
    transducer = workload.checkpoint.config.transducer
    return {
        "name": workload.name,
        "note": workload.note,
        "kind": transducer.kind if transducer.is_factorized else "tdt" if transducer.is_tdt else "rnnt",
        "transducer": dataclasses.asdict(transducer),
        "context": list(workload.context),
        "chunk_encoder_frames": workload.context.chunk_encoder_frames,
        "stream_s": workload.stream_s,
        "stream_encoder_frames": workload.encoded.shape[1],
        "has_encoder": workload.encode is not None,
        "encoder": dataclasses.asdict(workload.encoder) if workload.encoder else None,
        "unavailable": [
            dataclasses.asdict(one.variant) | {"reason": one.reason, "is_failure": one.is_failure}
            for one in part.unavailable
        ],
        "results": [_figures(figures) for figures in part.figures],
    }


def _figures(figures: Figures) -> dict:
    return {
        **dataclasses.asdict(figures.variant),
        "batch": figures.batch,
        "audio_s": figures.audio_s,
        "decoder_s": figures.decoder._asdict(),
        "rounds_s": list(figures.rounds_s),
        "encoder_s": figures.encoder._asdict() if figures.encoder else None,
        "decoder_s_per_audio_s": figures.decoder_s_per_audio_s,
        "non_encoder_rtfx": figures.non_encoder_rtfx,
        "total_rtfx": figures.total_rtfx,
        "decoder_share": figures.decoder_share,
        "labels": figures.labels,
        "streams_as_label_looping": figures.streams_as_label_looping,
        "total_to_label_looping": figures.total_to_label_looping,
        "decoder_to_label_looping": figures.decoder_to_label_looping,
    }


def render(document: dict) -> str:
    """Markdown of a whole result, which may be one read from a file."""
    return "\n\n".join([render_heading(document), *map(render_workload, document["workloads"])])


def render_heading(document: dict) -> str:
    """Hardware, versions, date, commit and command."""
    command = textwrap.wrap(document["command"], _LINE_WIDTH - 6, break_long_words=False, break_on_hyphens=False)
    lines = " \\\n    ".join(command)
    rounds = document["plan"]["repeats"]
    return f"# Decoder benchmark\n\n```\n{lines}\n```\n\n{_wrap(f'{describe(document)}; {rounds} rounds')}"


def render_workload(workload: dict) -> str:
    """A table for each figure, a line for each decoder, a column for each batch size."""
    left, right = workload["context"]
    title = (
        f"## {workload['name']}, context [{left},{right}]: {workload['stream_s']:g} s per stream in chunks of "
        f"{workload['chunk_encoder_frames']} encoder frames"
    )
    found = {(_variant(result), result["batch"]): result for result in workload["results"]}
    variants = list(dict.fromkeys(variant for variant, _ in found))
    batches = list(dict.fromkeys(batch for _, batch in found))
    tables = [title, _wrap(workload["note"])]
    for title, cell in _tables(workload["results"]):
        cells = [[str(v), *(cell(found[v, b]) if (v, b) in found else "-" for b in batches)] for v in variants]
        tables.append(f"{title}\n\n{markdown_table(['decoder', *(f'batch {b}' for b in batches)], cells, left=1)}")
    if workload["unavailable"]:
        lines = [f"- {_variant(one)}: {one['reason']}" for one in workload["unavailable"]]
        tables.append("\n".join(["Unavailable:", *lines]))
    return "\n\n".join(tables)


def _wrap(text: str) -> str:
    return textwrap.fill(text, _LINE_WIDTH, break_long_words=False, break_on_hyphens=False)


def _variant(result: dict) -> Variant:
    return Variant(**{name: result[name] for name in _VARIANT_FIELDS})


def _tables(results: Sequence[dict]) -> list[tuple[str, Callable[[dict], str]]]:
    """Title and cell of each table. Results of earlier commits lack some figures."""
    tables: list[tuple[str, Callable[[dict], str]]] = [
        ("Decoder, ms per audio second: median (min .. max)", _milliseconds),
        ("Non-encoder RTFx", lambda r: three_digits(r["non_encoder_rtfx"])),
    ]
    if any(r.get("decoder_to_label_looping") for r in results):
        title = "Decoder: time to that of Penstock's label-looping, same driver, torch; median of rounds"
        tables.append((title, lambda r: _or_dash(r["decoder_to_label_looping"])))
    if any(r["encoder_s"] for r in results):
        tables += [
            ("Total RTFx (encoder and decoder)", lambda r: three_digits(r["total_rtfx"])),
            ("Share of the time in the decoder, %", lambda r: three_digits(100.0 * r["decoder_share"])),
        ]
    if any(r["total_to_label_looping"] for r in results):
        title = "Encoder and decoder: time to that with Penstock's label-looping, same driver, torch; median of rounds"
        tables.append((title, lambda r: _or_dash(r["total_to_label_looping"])))
    for span in (CHUNKS, WHOLE):
        # The last of several baselines is the one with CUDA graphs.
        baselines = {r["batch"]: r for r in results if _is_baseline(r, span)}
        if baselines:
            title = f"Speed-up over NeMo's label-looping ({span}); median of rounds"
            tables.append((title, lambda r, b=baselines: _speed_up(b.get(r["batch"]), r)))
    return [*tables, ("Labels found (streams with exactly the labels of Penstock's label-looping, %)", _labels)]


def _is_baseline(result: dict, span: str) -> bool:
    return (result["implementation"], result["decoder"], result["span"]) == (NEMO, LABEL_LOOPING, span)


def _milliseconds(result: dict) -> str:
    seconds = result["decoder_s"]
    median, low, high = (three_digits(1000.0 * seconds[s] / result["audio_s"]) for s in ("median", "min", "max"))
    return f"{median} ({low} .. {high})"


def _speed_up(baseline: dict | None, result: dict) -> str:
    return three_digits(paired_ratio(baseline["rounds_s"], result["rounds_s"])) if baseline else "-"


def _or_dash(value: float | None) -> str:
    return three_digits(value) if value else "-"


def _labels(result: dict) -> str:
    share = result["streams_as_label_looping"]
    return str(result["labels"]) if share is None else f"{result['labels']} ({100.0 * share:.0f})"
