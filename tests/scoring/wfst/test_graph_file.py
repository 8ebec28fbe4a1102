"""A graph is read as it was written; a file that is broken, for another model or too large is rejected."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, safe_open, save_file

from penstock.errors import GraphError, PenstockError
from penstock.scoring.wfst.graph_file import ARRAYS, read_graph, write_graph
from tests.helpers.decoding_graphs import TOKENIZER_SHA256, two_word_graph


@pytest.fixture
def path(tmp_path):
    write_graph(two_word_graph(), tmp_path / "g.safetensors")
    return tmp_path / "g.safetensors"


def rewrite(path, metadata=None, **arrays) -> None:
    with safe_open(path, framework="numpy") as file:
        wanted = {**file.metadata(), **(metadata or {})}
    save_file({**load_file(path), **arrays}, path, wanted)


def test_what_is_written_reads_the_same(path):
    graph, read = two_word_graph(), read_graph(path)
    for field in dataclasses.fields(graph):
        left, right = getattr(graph, field.name), getattr(read, field.name)
        if field.name in ARRAYS:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
        else:
            assert left == right
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_sizes_and_spellings(path):
    graph = read_graph(path)
    assert (graph.state_count, graph.blank, graph.largest_degree, graph.largest_closure) == (6, 2, 3, 3)
    assert [graph.spellings(word) for word in (1, 2)] == [[[0]], [[0, 1]]]
    assert graph.array_bytes == sum(array.nbytes for array in load_file(path).values())


def test_a_graph_is_for_one_model(path):
    graph = read_graph(path)
    graph.check_model(2, TOKENIZER_SHA256)
    with pytest.raises(GraphError, match="a model of 2 tokens, the model has 64"):
        graph.check_model(64, TOKENIZER_SHA256)
    with pytest.raises(GraphError, match=r"the tokenizer with SHA-256 000000000000\.\.\., the model's is ff"):
        graph.check_model(2, "f" * 64)


def test_a_graph_above_the_memory_limit_is_rejected(path):
    size = path.stat().st_size
    read_graph(path, memory_limit_bytes=size)
    with pytest.raises(GraphError, match=r"g\.safetensors: the graph takes 0\.0 MiB, 0\.0 MiB are free"):
        read_graph(path, memory_limit_bytes=size - 1)


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_a_truncated_file_is_rejected(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(GraphError, match=r"GRAPH_INVALID: .*g\.safetensors: cannot be read"):
        read_graph(path)


def test_other_files_are_rejected(tmp_path):
    with pytest.raises(GraphError, match=r"gone\.safetensors: cannot be read"):
        read_graph(tmp_path / "gone.safetensors")
    save_file({"a": np.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(GraphError, match="not a decoding graph of this version"):
        read_graph(tmp_path / "other.safetensors")
    with pytest.raises(PenstockError, match=r"SETTING_INVALID: .*ends in \.safetensors"):
        write_graph(two_word_graph(), tmp_path / "g.bin")
    with pytest.raises(PenstockError, match="OUTPUT_FAILED"):
        write_graph(two_word_graph(), tmp_path / "gone" / "g.safetensors")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"version": "2"}, "not a decoding graph of this version"),
        ({"topology": "other"}, "topology 'other', expected normal or compact"),
        ({"words": "["}, "the metadata are broken"),
        ({"words": "[1]"}, "words: expected a list of strings"),
        ({"words": json.dumps(["", "a", "a"])}, "words: expected distinct words"),
        ({"words": json.dumps(["", "a"])}, "spelling_words has 4 entries, expected 3"),
        ({"start_state": "6"}, "start_state: values from 6 to 6, expected 0 to 5"),
        ({"vocabulary_size": "1"}, "spelling_tokens: values from 0 to 1, expected 0 to 0"),
    ],
)
def test_broken_metadata_are_rejected(path, metadata, message):
    rewrite(path, metadata)
    with pytest.raises(GraphError, match=message):
        read_graph(path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("arc_labels", lambda a: a.astype(np.int64), "arc_labels is int64"),
        ("arc_weights", lambda a: a[None], r"arc_weights is float32 \[1, \d+\]"),
        ("arc_weights", lambda a: np.full_like(a, np.nan), "arc_weights: a weight is not finite"),
        ("arc_words", lambda a: a[1:], r"arc_words has \d+ entries, expected \d+"),
        ("arc_words", lambda a: a + 2, "arc_words: values from 2 to 4, expected 0 to 2"),
        ("arc_targets", lambda a: a - 1, "arc_targets: values from -1"),
        ("arc_offsets", lambda a: a[::-1].copy(), "arc_offsets: expected offsets that rise from 0"),
        ("arc_offsets", lambda a: a[:-1], "arc_offsets has 6 entries, expected 7"),
        ("closure_offsets", lambda a: np.where(np.arange(len(a)) == 1, 0, a).astype(np.int32), "by at least 1"),
        ("closure_targets", lambda a: a[::-1].copy(), "is not the state itself at cost 0"),
        ("closure_weights", lambda a: a + np.float32(1), "is not the state itself at cost 0"),
        ("final_weights", lambda a: np.full_like(a, np.inf), "no state is final"),
        ("spelling_words", lambda a: np.array([0, 0, 0, 2], np.int32), "at least one of every other word"),
        ("spelling_offsets", lambda a: np.array([0, 0, 3], np.int32), "spelling_offsets: expected offsets"),
    ],
)
def test_broken_arrays_are_rejected(path, name, change, message):
    rewrite(path, **{name: change(load_file(path)[name])})
    with pytest.raises(GraphError, match=message):
        read_graph(path)


def test_what_is_missing_is_named(path):
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    arrays = load_file(path)
    save_file(arrays, path, {name: text for name, text in metadata.items() if name != "vocabulary_size"})
    with pytest.raises(GraphError, match="the metadata lack 'vocabulary_size'"):
        read_graph(path)
    del arrays["closure_words"]
    save_file(arrays, path, metadata)
    with pytest.raises(GraphError, match="closure_words"):
        read_graph(path)
