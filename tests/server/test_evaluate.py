"""`penstock evaluate --url`: through a real server the words are those of NeMo, however many streams there are."""

import json

import pytest

from penstock.cli import main
from tests.helpers.golden import AN4, golden_utterances
from trials.server.running import CONTEXT, RunningServer

pytestmark = pytest.mark.server

MANIFEST = str(AN4 / "manifest.jsonl")


def test_the_words_are_those_of_nemo_with_more_streams_than_the_server_has(
    small_server: RunningServer, tmp_path, capsys
):
    path, url, streams = tmp_path / "report.json", small_server.url("grpc"), 4 * small_server.max_streams
    arguments = ["--url", url, "--streams", str(streams), "--json", str(path), MANIFEST, MANIFEST]
    assert main(["evaluate", *arguments]) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    assert (report["server"], report["model"], report["streams"]) == (url, None, streams)
    (result,) = report["results"]
    assert (result["context"], result["decoder"], result["failed_utterances"]) == (None, None, 0)
    expected = [golden.greedy(CONTEXT).text for golden in golden_utterances()] * 2
    assert [utterance["hypothesis"] for utterance in result["utterances"]] == expected
    assert f"server {url}" in capsys.readouterr().out
