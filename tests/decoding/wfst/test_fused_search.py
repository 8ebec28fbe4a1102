"""The whole search by kernels finds what it finds in PyTorch over what lives, bit for bit, eagerly and captured.

Needs the Triton language: `make test-kernels` runs it in the interpreter, so cases are small. The fixture also has the
cases of a GPU (`pytest.mark.gpu`).
"""

import random

import numpy as np
import pytest
import torch

from penstock.decoding.sizes import WfstLimits, WfstSizes
from penstock.decoding.wfst.captured_search import CapturedWfstSearch
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.errors import SettingError
from penstock.graphs.full_graph import FullGraphDriver
from penstock.graphs.no_while_loops import NoWhileLoopsDriver
from penstock.graphs.select import missing_for_while_nodes, select_driver
from tests.helpers.fake_capture import FakeBuilder, FakeCapture
from tests.helpers.launches import Launches
from tests.helpers.phrases import arena_of
from tests.helpers.wfst import Searcher, log_probs, random_graph
from tests.kernels.conftest import kernel_device  # noqa: F401 - a fixture

FRAMES, LENGTHS = 6, [6, 4]
CONTINUES_WORD = [False, True, False, True]


def driver_of(name: str, device: str):
    """A driver that captures: a real one on a GPU."""
    if device == "cuda":
        obstacle = missing_for_while_nodes() if name == "full_graph" else None
        if obstacle:
            pytest.skip(obstacle)
        return select_driver(name, device).driver
    return NoWhileLoopsDriver(FakeCapture()) if name == "no_while_loops" else FullGraphDriver(FakeBuilder())


def fused(device: str, driver: str, graph, sizes, limits=None, boosts=None) -> Searcher:
    """A search by kernels, prepared by a driver."""

    def prepare(search):
        return search if driver == "no_graphs" else CapturedWfstSearch(search, driver_of(driver, device), 2, 2, boosts)

    return Searcher(graph, sizes, limits, device=device, prepare=prepare, kernels="fused")


@pytest.mark.parametrize(
    ("driver", "sizes", "beam"),
    [
        ("no_graphs", WfstSizes(4, 128, 32), 50.0),
        ("no_graphs", WfstSizes(64, 16, 4), 8.0),
        ("no_while_loops", WfstSizes(64, 256, 64), 3.0),
        ("full_graph", WfstSizes(4, 128, 32), 50.0),
    ],
)
def test_equals_torch(kernel_device, driver, sizes, beam):  # noqa: F811
    """With too many arcs and tokens, too many nodes, and with room; runs of blanks are skipped."""
    graph, limits = random_graph(1, states=20), WfstLimits(beam, skip_blank=0.7)
    scores = log_probs(1, 2, FRAMES, graph.vocabulary_size)
    torch_search = Searcher(graph, sizes, limits)
    search = fused(kernel_device, driver, graph, sizes, limits)
    assert search.search(scores, 2, LENGTHS) == torch_search.search(scores, 2, LENGTHS)
    assert search.dropped == torch_search.dropped


def test_boosts_equal_torch(kernel_device):  # noqa: F811
    """A table and phrases; then none, over the same memory."""
    graph, sizes = random_graph(4, states=20), WfstSizes(64, 256, 64)
    scores, table = log_probs(4, 2, FRAMES, graph.vocabulary_size), np.zeros(len(graph.words), np.float32)
    table[1:] = np.linspace(-1, 3, len(table) - 1)
    phrases = {(0, 1): 2.0, (2,): -1.0}
    arena, start = arena_of(phrases, CONTINUES_WORD, kernel_device)
    boosts = StreamBoosts(
        torch.from_numpy(table)[None].to(kernel_device), torch.zeros(0, dtype=torch.int64, device=kernel_device), arena
    )
    search, torch_search = fused(kernel_device, "full_graph", graph, sizes, boosts=boosts), Searcher(graph, sizes)
    expected = torch_search.search(scores, 3, LENGTHS, table, arena_of(phrases, CONTINUES_WORD))
    assert search.search(scores, 3, LENGTHS, table, (arena, start)) == expected
    plain = torch_search.search(scores, 3, LENGTHS)
    assert expected != plain == search.search(scores, 3, LENGTHS)


def test_recorded_words_equal_torch(kernel_device, tmp_path):  # noqa: F811
    """Over the graph of what is said in the bundled recordings."""
    pytest.importorskip("kaldifst")
    from tests.helpers.graph_paths import random_costs
    from tests.helpers.word_graphs import compile_words, recorded_text, word_arpa

    lines = recorded_text()
    graph, sizes, limits = (
        compile_words(word_arpa(lines, tmp_path / "words.arpa")).graph,
        WfstSizes(256),
        WfstLimits(6.0),
    )
    words = [graph.words.index(word) for word in random.Random(3).choice(lines).split()[:2]]
    labels = [label for word in words for token in graph.spellings(word)[0] for label in (token, graph.blank)]
    scores = -random_costs(len(labels), graph.vocabulary_size, 1)
    scores[np.arange(len(labels)), labels] += 6
    scores = torch.from_numpy(scores).log_softmax(dim=1)[None]
    expected = Searcher(graph, sizes, limits).search(scores)
    assert expected[0].words == words
    assert fused(kernel_device, "no_graphs", graph, sizes, limits).search(scores) == expected


def test_kernels_that_cannot_run_are_rejected(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(SettingError, match='kernels "fused" are not possible: '):
        Searcher(random_graph(1), kernels="fused")


def test_launches_per_frame(kernel_device, monkeypatch):  # noqa: F811
    """Kernels, and operations between them, of each further frame of a chunk."""
    if kernel_device == "cuda":
        pytest.skip("launches are counted in the interpreter")
    from triton.runtime.interpreter import GridExecutor

    counted, run = Launches(), GridExecutor.__call__

    def launch(executor, *args, **kwargs):
        before = counted.count
        run(executor, *args, **kwargs)
        counted.count = before + 1  # not what the interpreter does instead

    monkeypatch.setattr(GridExecutor, "__call__", launch)
    graph = random_graph(1, states=20)
    found = []
    for frames in (1, 1 + FRAMES):
        searcher = fused(kernel_device, "no_graphs", graph, WfstSizes(64, 256, 64))
        counted.count = 0
        with counted:
            searcher.search(log_probs(1, 2, frames, graph.vocabulary_size))
        found.append(counted.count)
    assert 5 * FRAMES < found[1] - found[0] <= 12 * FRAMES
