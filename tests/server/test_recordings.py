"""Every way to hand in a file gives the same words, times and remarks: those of FFmpeg's decode of the file."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import grpc
import httpx2
import pytest
import soundfile

from client.tests.helpers.recordings import RATE_HZ, RECORDINGS, decode, make
from penstock.cli import main as penstock
from penstock.evaluation.errors import compare
from penstock_client import Client
from penstock_client.cli.main import main as penstock_client
from penstock_gateway.riva.proto import riva_asr_pb2 as riva
from penstock_gateway.riva.service import SERVICE
from tests.helpers.golden import golden_utterances
from trials.server.running import CONTEXT

pytestmark = [
    pytest.mark.server,
    pytest.mark.usefixtures("uncompiled"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("ffmpeg", "lame", "opusenc", "flac", "sox"))), reason="needs encoders"
    ),
]
SOME = {"joined.mp3", "zero.wav", "half.webm", "late.mp4", "damaged.m4a", "hole.webm"}
NEEDED = {"cbr.mp3", "a.webm", "a.m4a", "a.flac"}
SAID_MORE = {"small.wav", "joined.wav", "a.amr"}
"""FFmpeg's command stops at the length that is stated, at the second file, and drops pauses."""


class Told(NamedTuple):
    """A reader's results of a file."""

    words: list[tuple[str, int]]
    """With their starts in ms."""
    remarks: list[str]


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
def recordings(request, tmp_path_factory) -> dict[str, Path]:
    folder, files = tmp_path_factory.mktemp("recordings"), {}
    talk = folder / "talk.wav"
    path = max((each.path for each in golden_utterances()), key=lambda path: soundfile.info(path).duration)
    soundfile.write(talk, soundfile.read(path)[0], RATE_HZ, subtype="PCM_16")
    made = {
        each.name: make(each, files, talk, folder) for each in RECORDINGS if request.param or each.name in SOME | NEEDED
    }
    return {name: path for name, path in made.items() if request.param or name in SOME}


def of_json(lines: str) -> list[Told]:
    documents = map(json.loads, lines.splitlines())
    return [
        Told([(w["word"], w["start_ms"]) for w in each["words"]], [remark["code"] for remark in each["remarks"]])
        for each in documents
    ]


async def of_openai(address: str, path: Path) -> Told:
    async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=120) as client:
        data = {"response_format": "verbose_json", "timestamp_granularities[]": ["word"]}
        body = (await client.post("/v1/audio/transcriptions", files={"file": path.open("rb")}, data=data)).json()
        reply = await client.post("/v1/audio/transcriptions", files={"file": path.open("rb")}, data={"stream": "true"})
    done = json.loads(reply.text.split("\n\n")[-2].removeprefix("data: "))
    assert done["text"] == body["text"]
    assert done.get("remarks", []) == body["remarks"]
    words = [(word["word"], round(1000 * word["start"])) for word in body["words"]]
    return Told(words, [remark["code"] for remark in body["remarks"]])


async def of_riva(address: str, path: Path) -> Told:
    config = {"verbatim_transcripts": True, "enable_word_time_offsets": True}
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/Recognize",
            request_serializer=riva.RecognizeRequest.SerializeToString,
            response_deserializer=riva.RecognizeResponse.FromString,
        )(riva.RecognizeRequest(config=config, audio=path.read_bytes()))
        results = (await call).results
        remarks = dict(await call.trailing_metadata()).get("penstock-warning", "")
    words = [(word.word, word.start_time) for result in results for word in result.alternatives[0].words]
    return Told(words, [each.partition(";")[0] for each in remarks.split(", ") if each])


def test_all_readers_tell_the_same(recordings, server, gateway, bundled_model, tmp_path, capsys):
    paths = list(map(str, recordings.values()))
    assert penstock_client(["--url", server.url("grpc"), "--json", *paths]) == 0
    told = dict(zip(recordings, of_json(capsys.readouterr().out), strict=True))
    context = f"{CONTEXT[0]},{CONTEXT[1]}"
    # One process: gRPC's threads, which this one has, do not survive a fork.
    options = ["--model", str(bundled_model), "--context", context, "--processes", "1"]
    assert penstock(["transcribe", *options, "--json", *paths]) == 0
    assert dict(zip(recordings, of_json(capsys.readouterr().out), strict=True)) == told
    for name, path in recordings.items():
        assert asyncio.run(of_openai(gateway.http, path)) == told[name]
        assert asyncio.run(of_riva(gateway.grpc, path)) == told[name]
    with Client(server.url("grpc"), timeout_s=60) as client:
        for name, path in recordings.items():
            if not {"gap", "damaged"} & set(told[name].remarks) and name not in SAID_MORE:
                text = client.transcribe(decode(path)).text
                # FFmpeg's own decoders differ by up to 0.004, and a word may that is as likely as another.
                assert compare(" ".join(word for word, _ in told[name].words), text).words.edits <= 1, name
    manifest, report = tmp_path / "manifest.jsonl", tmp_path / "report.json"
    texts = {name: " ".join(word for word, _ in told[name].words) for name in recordings}
    rows = [json.dumps({"audio_filepath": str(path), "text": texts[name]}) for name, path in recordings.items()]
    manifest.write_text("\n".join(rows))
    assert penstock(["evaluate", *options, "--json", str(report), str(manifest)]) == 0
    (result,) = json.loads(report.read_text())["results"]
    assert [utterance["hypothesis"] for utterance in result["utterances"]] == list(texts.values())
