"""`python -m benchmarks.wfst`: word errors beside kaldi-decoder, boosts by topology, speed, tables."""

import json

import numpy as np
import pytest

from benchmarks import wfst
from benchmarks.wfst_accuracy import GraphFiles, doubled_words, in_first_half, word_boosts
from benchmarks.wfst_report import latency_table
from benchmarks.wfst_speed import Load, Pipeline, boost_cost, pipeline_decoders, pipeline_rows, search_rows
from penstock.decoding.wfst.sizes import WfstLimits
from penstock.evaluation.manifest import Utterance
from penstock.model.config import AttentionContext
from tests.helpers.decoding_graphs import two_word_graph
from tests.helpers.wfst import log_probs, random_graph


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """The recordings' words in both topologies, with OpenFst's files."""
    pytest.importorskip("kaldi_decoder")
    from penstock.scoring.wfst.building.fst_arrays import write_openfst
    from penstock.scoring.wfst.graph_file import TOPOLOGIES, write_graph
    from tests.helpers.word_graphs import compile_words, recorded_text, word_arpa

    folder = tmp_path_factory.mktemp("graphs")
    arpa, paths = word_arpa(recorded_text(), folder / "words.arpa"), []
    for topology in TOPOLOGIES:
        compiled = compile_words(arpa, topology)
        paths.append(folder / f"{topology}.safetensors")
        write_graph(compiled.graph, paths[-1])
        write_openfst(compiled.fst, paths[-1].with_suffix(".fst"))
    return paths


@pytest.fixture
def run(monkeypatch, tmp_path, graphs):
    monkeypatch.setattr(wfst, "prepare_process", lambda threads: None)
    monkeypatch.setattr("benchmarks.wfst_accuracy.LM_WEIGHTS", (1 / 3,))
    monkeypatch.setattr("benchmarks.wfst_accuracy.BLANK_PENALTIES", (0.0, 2 / 3))
    monkeypatch.setattr("benchmarks.wfst_accuracy.BOOSTS", (0.0, 2.0))

    def run(*arguments: str) -> dict:
        path = tmp_path / "wfst.json"
        given = [text for graph in graphs for text in ("--graph", str(graph))]
        assert wfst.main([*given, "--json", str(path), *arguments]) == 0
        return json.loads(path.read_text(encoding="utf-8"))

    return run


def test_word_errors_and_boosts(run, capsys):
    document = run("--only", "accuracy,boosts", "--contexts", "70,6")
    by_name = {(row["decoder"], row["setting"]): row for row in document["accuracy"] if not row["is_tuned"]}
    greedy, words = by_name["ctc", ""], 0
    for counts in (greedy["first"], greedy["other"]):
        words += counts["reference_units"]
    assert words == 34
    for topology in ("normal", "compact"):
        row = by_name[f"wfst, {topology}", "lm 0.33, penalty 0"]
        peer = by_name[f"kaldi-decoder, {topology}", "lm 0.33, penalty 0"]
        assert (row["texts_as_kaldi"], row["texts"]) == (6, 6)
        assert (row["first"], row["other"]) == (peer["first"], peer["other"])
    boosts = {(row["topology"], row["boost"]): row for row in document["boosts"]}
    # The compact topology takes a held piece for the same word again, and each earns the boost.
    assert boosts["compact", 2.0]["doubled"] > 3 > boosts["normal", 2.0]["doubled"]
    assert " kaldi-decoder, normal |" in capsys.readouterr().out


def test_the_search_beside_kaldi_decoder(run):
    document = run("--only", "search", "--batches", "1", "2", "--repeats", "1", "--seconds", "1.5")
    rows = document["search"]["rows"]
    assert [(row["graph"], row["streams"], row["chunk_encoder_frames"]) for row in rows[:4]] == [
        ("normal", 1, None), ("normal", 1, 7), ("normal", 2, None), ("normal", 2, 7),
    ]  # fmt: skip
    assert len(rows) == 8 and all(row["equal"] == 4 and row["to_kaldi"] > 0 for row in rows)
    assert document["search"]["bytes_per_stream"] <= 256 * 1024


def test_the_pipeline(graphs):
    from benchmarks.recognizer import BUNDLE, MANIFEST, read_recordings

    decoders = pipeline_decoders(graphs[0], None)
    plan = Pipeline(BUNDLE, AttentionContext(70, 6), decoders, read_recordings(MANIFEST)[:2], 1)
    rows = pipeline_rows(plan, 2)
    assert [row.decoder for row in rows] == ["greedy", "ctc", "ctc_beam, 16", "wfst"]
    assert all(0 < row.decoder_share < 1 and row.word_errors <= row.words for row in rows)


def test_without_kaldi_decoder():
    graph = random_graph(0)
    load = Load(log_probs(0, 4, 9, graph.vocabulary_size), 0.36, 3)
    rows = search_rows("random", GraphFiles(graph, None), load, [2], WfstLimits(), 1.0, 1)
    assert [row.kaldi_rtfx for row in rows] == [None, None]
    cost = boost_cost("random", graph, load, WfstLimits(), 1.0, 1)
    assert (cost.streams, cost.words) == (4, len(graph.words) - 1)


def test_boosts_of_words():
    boosts = word_boosts(two_word_graph(), [["a"], ["b", "b", "unknown"], []])
    np.testing.assert_array_equal(boosts, [[0, 1, 0], [0, 0, 2], [0, 0, 0]])


def test_doubled_words():
    assert doubled_words("one one one two one") == 2
    assert doubled_words("") == 0


def test_halves_of_speakers(tmp_path):
    def said_by(speaker: str | None, line: int) -> Utterance:
        return Utterance(tmp_path, 1.0, "", tmp_path, line, speaker)

    assert in_first_half([said_by(name, 1) for name in ("c", "a", "b", "a")]) == [True, True, False, True]
    assert in_first_half([said_by(None, line) for line in (9, 10, 11)]) == [True, False, True]


def test_an_unknown_part(capsys):
    with pytest.raises(SystemExit):
        wfst.main(["--graph", "g", "--only", "accuracy,none"])
    assert "'none' is not a part" in capsys.readouterr().err


def test_the_table_of_latencies():
    model = {"batches_per_s": 20.0, "batch": 2.0, "compute_ms": 30.1, "queue_ms": 24.4, "total_ms": 54.5}
    model |= {"predicted_queue_ms": 22.8, "predicted_total_ms": 52.9}
    window = {"streams": 16, "models": {"decoder": model}, "final_latency_ms": {"p50": 60.0, "p99": 78.0}}
    table = latency_table([{"decoder": "wfst", "window": window | {"rtfx": 16.0, "late_share": 0.0}}])
    assert "30.1" in table and "22.8" in table and "60 / 78" in table
