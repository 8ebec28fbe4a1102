"""Tables of the graph benchmark."""

from collections.abc import Callable

from penstock.evaluation.errors import EditCounts
from penstock.reporting import markdown_table


def accuracy_table(rows: list[dict]) -> str:
    """Word error rates."""
    header = ["context", "decoder", "setting", "tuned", "WER % first half", "other half", "all", "as kaldi-decoder"]
    lines = []
    for row in rows:
        first, other = EditCounts(**row["first"]), EditCounts(**row["other"])
        equal = "" if row["texts_as_kaldi"] is None else f"{row['texts_as_kaldi']} of {row['texts']}"
        rates = [_percent(counts.rate) for counts in (first, other, first + other)]
        is_tuned = "yes" if row["is_tuned"] else ""
        lines.append([row["context"], row["decoder"], row["setting"], is_tuned, *rates, equal])
    return markdown_table(header, lines)


def boosts_table(rows: list[dict]) -> str:
    """Word error rates with the words of each utterance boosted."""
    boosts = list(dict.fromkeys(row["boost"] for row in rows))
    lines: dict[str, list[str]] = {}
    for row in rows:
        cell = f"{_percent(EditCounts(**row['words']).rate)} ({row['doubled']:+d})"
        lines.setdefault(row["topology"], []).append(cell)
    return markdown_table(
        ["boost a word", *(f"{boost:g}" for boost in boosts)], [[name, *cells] for name, cells in lines.items()]
    )


def search_table(part: dict) -> str:
    """The search alone, what boosts add, memory."""
    header = ["graph", "streams", "chunks", "RTFx", "kaldi-decoder's", "ratio", "equal words"]
    lines = []
    for row in part["rows"]:
        frames, peer = row["chunk_encoder_frames"], row["kaldi_rtfx"]
        against = ["", "", ""] if peer is None else [f"{peer:.0f}", f"{row['to_kaldi']:.3f}", row["equal"]]
        span = "whole" if frames is None else f"{frames} frames"
        lines.append([row["graph"], row["streams"], span, f"{row['rtfx']:.0f}", *against])
    boosts = []
    for one in part["boosts"]:
        cost = f"{100 * (one['ratio'] - 1):+.1f} % time"
        if one["phrases_ratio"] is not None:
            cost += f", with {one['words']} phrases of two words {100 * (one['phrases_ratio'] - 1):+.1f} %"
        boosts.append(f"{one['graph']}: {one['streams']} streams with {one['words']} boosted words each take {cost}.")
    memory = f"Memory of a stream: {part['bytes_per_stream'] / 1024:.0f} KiB."
    return "\n\n".join([markdown_table(header, lines), *boosts, memory])


def pipeline_table(rows: list[dict]) -> str:
    """The recognizer with each decoder."""
    header = ["streams", "decoder", "RTFx", "time to ctc's", "decoder's share", "word errors"]
    lines = [
        [
            row["streams"], row["decoder"], row["rtfx"], f"{row['to_ctc']:.2f}", f"{100 * row['decoder_share']:.0f} %",
            f"{row['word_errors']} of {row['words']}",
        ]
        for row in rows
    ]  # fmt: skip
    return markdown_table(header, lines)


def latency_table(rows: list[dict]) -> str:
    """The decoder model in the server under load: measured means, and those of M/D/1 with its rate and compute time."""
    header = [
        "decoder", "streams", "batches/s", "batch", "compute ms", "queue ms", "total ms", "M/D/1 queue ms",
        "M/D/1 total ms", "end to final p50 / p99 ms", "RTFx", "late chunks",
    ]  # fmt: skip
    lines = []
    for row in rows:
        window, model = row["window"], row["window"]["models"]["decoder"]
        final = window["final_latency_ms"]
        figures = [f"{model[name]:.1f}" for name in ("batches_per_s", "batch", "compute_ms", "queue_ms", "total_ms")]
        predicted = [f"{model[f'predicted_{name}_ms']:.1f}" for name in ("queue", "total")]
        finals = f"{final['p50']:.0f} / {final['p99']:.0f}"
        late = f"{100 * window['late_share']:.1f} %"
        lines.append([row["decoder"], window["streams"], *figures, *predicted, finals, window["rtfx"], late])
    return markdown_table(header, lines)


RENDERERS: dict[str, Callable[..., str]] = {
    "accuracy": accuracy_table,
    "boosts": boosts_table,
    "search": search_table,
    "pipeline": pipeline_table,
    "latency": latency_table,
}


def _percent(rate: float | None) -> str:
    return "" if rate is None else f"{100 * rate:.2f}"
