"""What a person wants to read of one window first. Knows only the document."""


def verdict_lines(window: dict) -> list[str]:
    """Passed or not and why, the load generator's verdict, and what ran out."""
    final, words = window["final_latency_ms"], window["words"]
    wer = "no words" if words["wer"] is None else f"WER {100 * words['wer']:.1f} %"
    lines = [
        f"{window['streams']:g} streams {'PASS' if window['passed'] else 'FAIL'}: "
        f"{window['late_chunks']} of {window['chunks']} chunks late, end to final {_three(final)} ms, "
        f"chunk {_three(window['chunk_latency_ms'])} ms (p50/p95/p99), RTFx {window['rtfx']:.1f}, {wer}, "
        f"{window['refusals']['count']} refused, {window['errors']['count']} failed"
    ]
    lines += [f"  because: {reason}" for reason in window["reasons"]]
    lines.append(f"  {window['generator']['text']}")
    lines += [f"  used up: {found['resource']} ({found['text']})" for found in window["exhausted"]]
    if window["metrics_problem"]:
        lines.append(f"  no queue and compute times: {window['metrics_problem']}")
    return lines


def _three(percentiles: dict) -> str:
    return "/".join(number(percentiles[name]) for name in ("p50", "p95", "p99"))


def number(value: float | None, digits: int = 0) -> str:
    """A figure, or a dash where there is none: nothing was measured, or the answer never came."""
    is_known = value is not None and abs(value) < float("inf")  # false for NaN too
    return f"{value:.{digits}f}" if is_known else "-"
