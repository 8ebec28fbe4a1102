"""`python -m benchmarks.papers`: rows of small sizes, tables of any rows, and the page that is made from the JSON."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.papers import __main__ as command
from benchmarks.papers import beam_search, cuda_graphs, decoding_graphs, factorized, label_looping
from benchmarks.papers.__main__ import PAPERS
from benchmarks.papers.inputs import SHAPES, Shape
from benchmarks.papers.runner import Settings, select
from benchmarks.random_models import ENCODERS, EncoderSizes, TransducerSizes
from benchmarks.results import ROOT

MANIFEST = ROOT / "tests" / "data" / "an4" / "manifest.jsonl"
OUR_GREEDY = {"by": "penstock", "driver": "no_graphs", "beam": None}


@pytest.fixture
def settings(tmp_path, monkeypatch) -> Settings:
    """Models and recordings with which everything takes seconds; the texts of the recordings to learn from."""
    monkeypatch.setitem(ENCODERS, "tiny", EncoderSizes(2, 16, 2, 4))
    monkeypatch.setitem(SHAPES, "tiny", Shape("tiny", TransducerSizes(16, 16, 12)))
    return Settings.quick(
        device="cpu", shapes=("tiny",), manifest=MANIFEST, train=MANIFEST, work=tmp_path, with_nemo=False,
        batches=(1, 2), beam_batches=(2,), beams=(1, 2), stream_s=2.4, recordings=2,
    )  # fmt: skip


def check(rows: list[dict]) -> None:
    """All rows were measured."""
    assert rows and not [row for row in rows if "unavailable" in row]
    assert all(len(row["rounds_s"]) == 1 and row["rounds_s"][0] > 0 and row["audio_s"] > 0 for row in rows)


def check_tables(tables: list[str], count: int) -> None:
    """Every table has lines of equal columns."""
    assert len(tables) == count
    for table in tables:
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len(lines) > 2 and len({line.count(" | ") for line in lines}) == 1, table


@pytest.mark.nightly
def test_label_looping(settings):
    rows = list(label_looping.rows(settings))
    check(rows)
    greedy = select(rows, shape="tiny", kind="rnnt", batch=2, **OUR_GREEDY)
    assert len(greedy) == 3 and len({row["labels"] for row in greedy}) == 1, "two decoders, and one without projections"
    assert all(len(row["encoder_rounds_s"]) == 1 for row in rows)
    tables = list(label_looping.tables(rows))
    check_tables(tables, 1)
    assert "RNNT tiny-2" in tables[0]


@pytest.mark.nightly
def test_cuda_graphs(settings):
    rows = list(cuda_graphs.rows(settings))
    check(rows)
    assert sorted({(row["kind"], row["decoder"]) for row in rows}) == [
        ("ctc", "ctc"), ("rnnt", "frame-looping"), ("rnnt", "label-looping"), ("tdt", "label-looping"),
    ]  # fmt: skip
    (table,) = cuda_graphs.tables(rows)
    check_tables([table], 1)
    assert "RNNT 1.1B" in table and "2.09" in table and "10.4" not in table, "no graphs on a CPU"


@pytest.mark.nightly
def test_beam_search(settings):
    rows = list(beam_search.rows(settings))
    check(rows)
    speech = select(rows, kind="speech")
    greedy, fused = (select(speech, decoder="label-looping", has_lm=lm) for lm in (False, True))
    assert len(greedy) == len(fused) == 1 and len(speech) == 2 * (1 + 1 + 3)
    assert all(row["words"] == greedy[0]["words"] > 5 and row["errors"] <= 3 for row in speech)
    check_tables(list(beam_search.tables(rows)), 2)


@pytest.mark.nightly
def test_decoding_graphs(settings, monkeypatch):
    monkeypatch.setattr(decoding_graphs, "_live", live)
    rows = list(decoding_graphs.rows(settings))
    check(select(rows))
    assert [row["decoder"] for row in select(rows)] == ["wfst compact", "wfst normal", "ctc", "ctc_beam"]
    assert all(row["words"] > 5 and row["errors"] <= 3 for row in select(rows))
    tables = list(decoding_graphs.tables(rows))
    check_tables(tables[:2], 2)
    assert "here: live wfst, 2 streams" in tables[1] and len(tables) == 4 and "did not pass: late" in tables[3]


def live(settings: Settings, decoder: str, options: list[str], graph: Path, lm: Path) -> dict:
    """Result of a load test; tests/server has live windows, tests/loadtest the load test."""
    assert graph.exists() and lm.exists() and options[:2] == ["--decoder", decoder]
    times = {"compute_ms": 3.0, "queue_ms": 1.0, "total_ms": 4.0, "predicted_queue_ms": None, "batch": 1.0}
    return {"decoder": f"live {decoder}", "streams": settings.live_streams, "chunk_latency_ms": {"p99": 80.0},
            "rtfx": 2.0, "late_chunks": 1, "chunks": 9, "reasons": ["late"], "stages": {"encoder": times}}  # fmt: skip


@pytest.mark.nightly
def test_factorized(settings):
    rows = list(factorized.rows(Settings(**{**vars(settings), "epochs": 1.0, "mwer_steps": 1, "ilm_steps": 20})))
    check(select(rows))
    models = dict.fromkeys(row["model"] for row in select(rows))
    expected = [factorized.RNNT, factorized.FACTORIZED, factorized.UNNORMALIZED, factorized.CONTROL, factorized.MWER]
    assert list(models)[:5] == expected
    assert len(select(rows, model=factorized.FACTORIZED)) == len(factorized.PAIRS)
    check_tables(list(factorized.tables(rows))[:1], 1)


def test_the_page_is_that_of_the_result():
    document = json.loads((ROOT / command.RESULT).read_text(encoding="utf-8"))
    assert list(document) == list(PAPERS)
    text = (ROOT / command.PAGE).read_text(encoding="utf-8")
    assert command.up_to_date(document, text) == text, "run python -m benchmarks.papers --page"


@pytest.mark.gpu
def test_on_a_gpu(settings):
    on_gpu = Settings(**{**vars(settings), "device": "cuda"})
    rows = list(label_looping.rows(on_gpu))
    assert select(rows, driver="no_while_loops", by="penstock") and torch.cuda.is_available()
    check_tables(list(label_looping.tables(rows)), 2)
