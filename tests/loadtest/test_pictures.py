"""What the pictures show: every window or round, the limits, and what did not pass."""

import math

import pytest

from loadtest import pictures

FACTS = {"hardware": "two cores", "date": "today", "commit": None}


def window(streams: int, p95_ms: float | None, late: int) -> dict:
    latency = {"p95": p95_ms}
    return {
        "streams": streams, "seconds": 30.0, "chunk_ms": 560.0, "chunks": 1000, "late_chunks": late,
        "final_latency_ms": latency, "chunk_latency_ms": latency, "passed": late <= 1,
    }  # fmt: skip


@pytest.fixture
def figures(monkeypatch) -> list:
    """Those that were saved."""
    found, save = [], pictures._save

    def keep(figure, *rest) -> None:
        save(figure, *rest)
        found.append(figure)

    monkeypatch.setattr(pictures, "_save", keep)
    return found


def lines(axes) -> dict[str, list[float]]:
    """Values by label; those without a label have a running one."""
    return {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}


def test_load(figures, tmp_path):
    windows = [window(8, 80.0, 0), window(32, None, 900), window(16, 200.0, 1)]
    document = {"circumstances": FACTS, "server": {"context": "[70,6]"}, "windows": windows}
    pictures.draw_load(document | {"capacity": {"streams": 16}}, tmp_path / "one.png")
    assert 1000 < (tmp_path / "one.png").stat().st_size < 60_000
    latency, late = figures[0].axes
    drawn = lines(latency)
    assert drawn["end of audio to final text"][:2] == [80.0, 200.0], "in the order of streams"
    assert math.isnan(drawn["end of audio to final text"][2])
    assert "more than 5 % without response" in drawn and "sustained: 16 streams" in drawn
    assert [1000.0, 1000.0] in drawn.values() and [560.0, 560.0] in drawn.values()
    assert lines(late)["did not pass"] == [90.0]
    assert [0.0, 0.1, 90.0] in lines(late).values() and [0.1, 0.1] in lines(late).values()
    assert figures[0].get_supxlabel() == "[70,6], two cores, today"


def test_ratios(figures, tmp_path):
    ratios = {"one": {"NeMo": [2.0, 3.0, 7.0], "sherpa-onnx": [1.0]}, "two": {"NeMo": [4.0]}}
    pictures.draw_ratios(ratios, tmp_path / "one.png", "speed-up", FACTS)
    (axes,) = figures[0].axes
    medians = [list(container[0].get_xdata()) for container in axes.containers]
    assert medians == [[3.0, 4.0], [1.0]]
    (spread,) = axes.containers[0][2]
    assert [[x for x, _ in segment] for segment in spread.get_segments()] == [[2.0, 7.0], [4.0, 4.0]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]
