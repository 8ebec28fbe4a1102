"""`penstock evaluate --url`: through a real server the words are those of NeMo, however many streams there are."""

import json

import pytest

from penstock.cli import main
from tests.helpers.golden import AN4, golden_utterances
from trials.server.running import CONTEXT, RunningServer

pytestmark = pytest.mark.server

MANIFEST = str(AN4 / "manifest.jsonl")


def hypotheses(report: dict) -> list[str]:
    (result,) = report["results"]
    assert (result["context"], result["decoder"], result["failed_utterances"]) == (None, None, 0)
    return [utterance["hypothesis"] for utterance in result["utterances"]]


def test_the_words_are_those_of_nemo(server: RunningServer, tmp_path, capsys):
    path = tmp_path / "report.json"
    manifests, streams = [MANIFEST] * 4, 20
    url = server.url("grpc")
    assert main(["evaluate", "--url", url, "--streams", str(streams), "--json", str(path), *manifests]) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    assert (report["server"], report["model"], report["streams"]) == (url, None, streams)
    assert hypotheses(report) == [golden.greedy(CONTEXT).text for golden in golden_utterances()] * len(manifests)
    assert f"server {url}" in capsys.readouterr().out


def test_more_streams_than_the_server_has(small_server: RunningServer, tmp_path):
    path = tmp_path / "report.json"
    url, streams = small_server.url("grpc"), str(4 * small_server.max_streams)
    assert main(["evaluate", "--url", url, "--streams", streams, "--json", str(path), MANIFEST, MANIFEST]) == 0
    expected = [golden.greedy(CONTEXT).text for golden in golden_utterances()] * 2
    assert hypotheses(json.loads(path.read_text(encoding="utf-8"))) == expected
