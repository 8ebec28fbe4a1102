"""`/v1/audio/transcriptions` and `/v1/models` on a real socket, with streams whose words follow from the audio."""

import asyncio
import json
import tempfile

import httpx2
import pytest

from client.tests.helpers.sound_files import media_file, sound_file
from gateway.tests.helpers.fake_streams import speech
from gateway.tests.helpers.running import running
from penstock_gateway.audio import container
from penstock_gateway.audio.container import DecodedRecording
from penstock_gateway.config import Config
from penstock_gateway.errors import ErrorCode, GatewayError
from penstock_gateway.http.openai_objects import speaker_name
from penstock_gateway.openai.formats import Transcription, render
from penstock_gateway.openai.request import parse_fields
from penstock_gateway.openai.sse import TranscriptEvents
from penstock_gateway.security import limits
from penstock_gateway.stream.events import Final, Word

pytestmark = pytest.mark.anyio
AUDIO = speech(0.3, 1.2, 0.2)
"""Three words, a pause, two words."""


def encoded(samples=AUDIO, form="WAV"):
    return sound_file(samples, form=form)


@pytest.fixture
async def client(gateway):
    async with running(gateway) as served, httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
        yield client


async def post(client, file=None, **fields):
    files = {} if file is None else {"file": ("speech.bin", file)}
    return await client.post("/v1/audio/transcriptions", data={"model": "whisper-1", **fields}, files=files)


def error(response, status):
    assert response.status_code == status, response.text
    body = response.json()["error"]
    assert body["message"]
    return body["code"], body["param"]


@pytest.mark.parametrize("form", ["WAV", "FLAC"])
async def test_json(client, streams, form):
    response = await post(client, encoded(form=form))
    assert response.json() == {"text": "w0 w1 w2 w3 w4", "usage": {"type": "duration", "seconds": 2}}
    (stream,) = streams.opened
    assert stream.options.model == "fake-asr"
    assert stream.options.endpoint_silence_ms == 800
    assert stream.protocol == "openai"
    assert stream.is_cancelled  # freed


async def test_text_srt_and_vtt(client):
    assert (await post(client, encoded(), response_format="text")).text == "w0 w1 w2 w3 w4\n"
    srt = await post(client, encoded(), response_format="srt")
    assert srt.text.startswith("1\n00:00:00,000 --> 00:00:01,000\nw0 w1 w2\n\n2\n00:00:01,500 --> ")
    vtt = await post(client, encoded(), response_format="vtt")
    assert vtt.text.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nw0 w1 w2\n")
    assert vtt.headers["content-type"].startswith("text/vtt")


async def test_verbose_json(client):
    response = await client.post(
        "/v1/audio/transcriptions",
        data={"model": "fake-asr", "response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]},
        files={"file": ("a", encoded())},
    )
    body = response.json()
    assert (body["task"], body["language"], body["duration"]) == ("transcribe", "en-US", 1.7)
    assert body["words"][3] == {"word": "w3", "start": 1.5, "end": 1.6}
    assert [(each["id"], each["start"], each["end"], each["text"]) for each in body["segments"]] == [
        (0, 0.0, 0.3, "w0 w1 w2"),
        (1, 1.5, 1.7, "w3 w4"),
    ]
    assert body["segments"][0]["avg_logprob"] == pytest.approx(-0.6931)
    only_segments = (await post(client, encoded(), response_format="verbose_json")).json()
    assert "words" not in only_segments and len(only_segments["segments"]) == 2


async def test_logprobs(client):
    body = (await post(client, encoded(), **{"include[]": "logprobs"})).json()
    assert [token["token"] for token in body["logprobs"]] == ["w0", " w1", " w2", " w3", " w4"]
    assert "".join(token["token"] for token in body["logprobs"]) == body["text"]
    assert body["logprobs"][0] == {"token": "w0", "logprob": -0.6931, "bytes": [119, 48]}


def events_of(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]


async def test_streamed_deltas_are_the_text(client, streams):
    *deltas, done = events_of(await post(client, encoded(), stream="true", **{"include[]": "logprobs"}))
    assert {event["type"] for event in deltas} == {"transcript.text.delta"}
    assert "".join(event["delta"] for event in deltas) == done["text"] == "w0 w1 w2 w3 w4"
    assert len(deltas) > 3
    assert done["type"] == "transcript.text.done"
    assert done["usage"] == {"type": "duration", "seconds": 2}
    assert [token["token"] for event in deltas for token in event["logprobs"]] == [
        token["token"] for token in done["logprobs"]
    ]
    assert streams.opened[0].is_cancelled


async def test_fields_become_options(client, streams):
    fields = {
        "keywords[]": ["market street", "rubout"],
        "language": "en",
        "chunking_strategy": '{"type": "server_vad", "silence_duration_ms": 500}',
        "temperature": "0.2",
        "prompt": "names",
    }
    response = await post(client, encoded(), **fields)
    options = streams.opened[0].options
    assert options.phrases == (("market street", 1.5), ("rubout", 1.5))
    assert options.endpoint_silence_ms == 500
    assert options.language is None  # the model has no choice
    assert response.headers["penstock-ignored"] == "prompt,temperature"
    await post(client, encoded(), **{"chunking_strategy[type]": "server_vad", "keywords": "x"})
    assert streams.opened[1].options.endpoint_silence_ms == 800
    assert streams.opened[1].options.phrases == (("x", 1.5),)


async def test_keywords_that_the_model_cannot_write_are_named(client, make_gateway, streams):
    keywords = {"keywords[]": ["Müller", "24/7", "日本", "Rubout"]}
    response = await post(client, encoded(), **keywords)
    assert response.status_code == 200
    assert response.headers["penstock-ignored"] == r"keywords '24/7',keywords '\u65e5\u672c'"
    assert len(streams.opened[0].options.phrases) == 4  # the server fits those that it can write


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"response_format": "VERBOSE_JSON", "timestamp_granularities[]": "word"}, None),
        ({"response_format": "", "language": "", "stream": "", "timestamp_granularities[]": "word"},
         "timestamp_granularities"),
        ({"response_format": "text", "include[]": "logprobs"}, "include"),
        ({"known_speaker_names[]": "Ada"}, "known_speaker_names"),
        ({"speakers": "on", "known_speaker_names[]": "Ada"}, "speakers,known_speaker_names"),
        ({"response_format": "text", "speakers": "2", "stream": "true"}, "speakers"),
        ({"response_format": "text", "speakers": "off"}, None),
        ({"response_format": "srt", "speakers": "2"}, None),
        ({"response_format": "diarized_json", "known_speaker_references[]": "data:"}, "known_speaker_references"),
        *(({"language": code}, None) for code in ("auto", "english", "en-AU", "en_US", "none")),
    ],
)  # fmt: skip
async def test_values_that_apps_send(client, fields, ignored):
    response = await post(client, encoded(), **fields)
    assert (response.status_code, response.headers.get("penstock-ignored")) == (200, ignored)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "diarised_json"}, "response_format"),
        ({"speakers": "1"}, "speakers"),
        ({"speakers": "9"}, "speakers"),
        ({"known_speaker_names[]": list("abcdefghi")}, "known_speaker_names"),
        ({"known_speaker_names[]": ["Ada", "Ada "]}, "known_speaker_names"),
        ({"known_speaker_names[]": ["Ada", "unknown"]}, "known_speaker_names"),
        ({"stream": "yes"}, "stream"),
        ({"stream": "true", "response_format": "srt"}, "response_format"),
        ({"include[]": "words"}, "include"),
        ({"timestamp_granularities[]": "char"}, "timestamp_granularities"),
        ({"chunking_strategy": "manual"}, "chunking_strategy"),
        ({"chunking_strategy": "[1]"}, "chunking_strategy"),
        ({"chunking_strategy": '{"type": "server_vad", "a": ' + "[" * 900 + "]" * 900 + "}"}, "chunking_strategy"),
        ({"chunking_strategy": '{"type": "server_vad", "silence_duration_ms": 100}'}, None),
        ({"chunking_strategy[silence_duration_ms]": "a"}, "chunking_strategy[silence_duration_ms]"),
        ({"chunking_strategy[type]": "semantic"}, "chunking_strategy[type]"),
        ({"language": "de"}, "language"),
    ],
)
async def test_a_wrong_field_is_named(client, streams, fields, param):
    code, named = error(await post(client, encoded(), **fields), 400)
    assert code == "field_invalid"
    assert named == (param or "chunking_strategy[silence_duration_ms]")
    assert not streams.opened


TURNS = [(0.0, 0.2, "w0 w1", "Ada"), (0.2, 0.3, "w2", "B"), (1.5, 1.6, "w3", "B"), (1.6, 1.7, "w4", "Ada")]


async def test_diarized_json(client, streams):
    names = {"known_speaker_names[]": "Ada", "chunking_strategy": "auto", "model": "whisper-1"}
    body = (await post(client, encoded(), response_format="diarized_json", **names)).json()
    assert (body["task"], body["text"], body["duration"]) == ("transcribe", "w0 w1 w2 w3 w4", 1.7)
    assert body["usage"] == {"type": "duration", "seconds": 2}
    found = [(each["start"], each["end"], each["text"], each["speaker"]) for each in body["segments"]]
    assert found == TURNS
    assert [each["id"] for each in body["segments"]] == ["seg_0", "seg_1", "seg_2", "seg_3"]
    assert {each["type"] for each in body["segments"]} == {"transcript.text.segment"}
    assert streams.opened[0].options.speakers == "on"


async def test_turns_of_speakers_are_events_of_a_stream(client):
    names = {"known_speaker_names[]": "Ada", "stream": "true"}
    response = await post(client, encoded(), response_format="diarized_json", **names)
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line.startswith("data")]
    turns = [each for each in events if each["type"] == "transcript.text.segment"]
    assert [(each["start"], each["end"], each["text"], each["speaker"]) for each in turns] == TURNS
    deltas = [each["delta"] for each in events if each["type"] == "transcript.text.delta"]
    assert "".join(deltas) == events[-1]["text"] == "w0 w1 w2 w3 w4"


async def test_speakers_in_other_formats(client, streams):
    form = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"], "speakers": "2"}
    body = (await post(client, encoded(), **form)).json()
    assert [word["speaker"] for word in body["words"]] == ["A", "A", "B", "B", "A"]
    assert [(each["text"], each["speaker"]) for each in body["segments"]] == [
        ("w0 w1", "A"), ("w2", "B"), ("w3", "B"), ("w4", "A"),
    ]  # fmt: skip
    assert streams.opened[0].options.speakers == 2
    srt = await post(client, encoded(), response_format="srt", speakers="on")
    assert [line for line in srt.text.splitlines() if "w" in line] == ["A: w0 w1", "B: w2", "B: w3", "A: w4"]
    plain = (await post(client, encoded(), response_format="verbose_json")).json()
    assert "speaker" not in plain["segments"][0]


@pytest.mark.parametrize(
    ("names", "shown"), [([], "ABCD"), (["C"], "CBDE"), (["B", "A"], "BACD"), (["D", "B", "C", "A"], "DBCA")]
)
def test_no_two_speakers_have_one_name(names, shown):
    assert [speaker_name(each, names) for each in (1, 2, 3, 4)] == list(shown)
    assert len({speaker_name(each, names) for each in range(1, 9)}) == 8


async def test_speakers_that_are_not_served_are_an_error(client, streams):
    streams.open_error = GatewayError(ErrorCode.SPEAKERS_NOT_SERVED, "speakers are not served")
    response = await post(client, encoded(), response_format="diarized_json")
    assert error(response, 400)[0] == "speakers_not_served"


async def test_other_rejections(client, streams):
    assert error(await post(client), 400) == ("field_invalid", "file")
    assert error(await post(client, b"no audio"), 400)[0] == "audio_invalid"
    assert error(await post(client, encoded(), model="gpt-5"), 404) == ("model_not_found", "model")
    assert error(await client.post("/v1/audio/transcriptions", content=b"x"), 400) == ("field_invalid", "file")
    assert error(await client.get("/v1/audio/transcriptions"), 405)
    assert error(await client.get("/v1/nothing"), 404)
    broken = {"content-type": "multipart/form-data; boundary=x"}
    assert error(await client.post("/v1/audio/transcriptions", content=b"y", headers=broken), 400)
    assert not streams.opened


@pytest.mark.parametrize("charset", ["idna", "utf-7", "hex", "unicode_escape", "none"])
async def test_a_form_is_in_utf_8(client, streams, charset):
    """Codecs such as idna fail in ways that the parser of a form does not know."""
    form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + b"\xff" * 100 + b"\r\n--x--\r\n"
    headers = {"content-type": f"multipart/form-data; boundary=x; charset={charset}"}
    response = await client.post("/v1/audio/transcriptions", content=form, headers=headers)
    assert error(response, 400) == ("field_invalid", "content-type")


async def test_any_name_of_a_field_without_an_effect_can_be_shown(client):
    response = await post(client, encoded(), **{"имя": "x", "prompt\x7f": "y"})
    assert response.headers["penstock-ignored"] == "prompt\\x7f,\\u0438\\u043c\\u044f"
    response = await post(client, encoded(), **{f"field{i}": "" for i in range(1000)})
    listed = response.headers["penstock-ignored"].split(",")
    assert len(",".join(listed)) <= 1000 and listed[-1] == f"and {1001 - len(listed):,} more"


async def test_a_client_that_disconnects_while_it_uploads_is_no_failure(gateway, streams, caplog):
    async with running(gateway) as served:
        for path in ("/v1/audio/transcriptions", "/v1/realtime/client_secrets"):
            _, writer = await asyncio.open_connection("127.0.0.1", served.http_port)
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
            writer.write(head.encode() + b"Content-Length: 1000\r\n\r\n--x\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()
            await writer.wait_closed()
        async with httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
            assert (await post(client, encoded())).status_code == 200
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/realtime/client_secrets"])
async def test_a_request_that_does_not_go_on_is_rejected(gateway, path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_SILENT_S", 0.05)
    async with running(gateway) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.http_port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        writer.write(head.encode() + b"Content-Length: 1000\r\n\r\n--x\r\n")
        status = await reader.readline()
        assert b" 408 " in status
        assert b"no part of the request arrived for 0.05 s" in await reader.read()
        writer.close()


async def test_a_file_that_breaks_off_in_the_middle_is_rejected_and_frees_its_stream(client, streams, monkeypatch):
    async def blocks(_):
        yield AUDIO
        raise GatewayError(ErrorCode.AUDIO_INVALID, "the audio is damaged")

    monkeypatch.setattr(DecodedRecording, "blocks", blocks)
    assert error(await post(client, encoded()), 400)[0] == "audio_invalid"
    assert streams.opened[0].is_cancelled
    *_, last = events_of(await post(client, encoded(), stream="true"))
    assert last["error"]["code"] == "audio_invalid"
    assert streams.opened[1].is_cancelled


async def test_a_cut_file_that_begins_late_gives_its_times_and_a_remark(client):
    data = media_file("matroska", "pcm_s16le", AUDIO, 16_000, start_s=5.0)
    whole = (await post(client, data, response_format="verbose_json")).json()
    assert (whole["remarks"], whole["segments"][0]["start"] >= 5.0) == ([], True)
    cut = await post(client, data[:-9000], response_format="verbose_json")
    assert cut.headers["penstock-warning"].startswith("cut; start=")
    (remark,) = cut.json()["remarks"]
    assert remark["code"] == "cut" and remark["start_s"] < 5.0 + len(AUDIO) / 16_000
    *_, last = events_of(await post(client, data[:-9000], stream="true"))
    assert last["remarks"] == [remark]


async def test_without_a_free_stream_no_file_is_decoded(client, streams, monkeypatch):
    def decode(*_):
        raise AssertionError

    monkeypatch.setattr(container, "_start", decode)
    streams.max_streams = 0
    assert error(await post(client, encoded()), 429)[0] == "streams_exhausted"


async def test_without_a_free_stream_no_body_is_read(client, streams):
    streams.max_streams = 0
    assert error(await client.post("/v1/audio/transcriptions", content=b"no form"), 429)[0] == "streams_exhausted"


async def test_an_upload_that_cannot_be_stored(client, streams, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")  # as with a full disk, its write fails
    response = await post(client, bytes(2 << 20))
    assert error(response, 503)[0] == "overloaded"
    assert response.headers["retry-after"] == "2"
    assert not streams.opened


async def test_models(client, streams):
    listed = (await client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["fake-asr"]
    assert (await client.get("/v1/models/whisper-1")).json()["id"] == "fake-asr"
    assert error(await client.get("/v1/models/other"), 404)[0] == "model_not_found"
    streams.groups = ()
    assert (await client.get("/v1/models")).json() == {"object": "list", "data": []}


async def test_strict_rejects_fields_without_an_effect(make_gateway):
    async with (
        running(make_gateway(strict=True)) as served,
        httpx2.AsyncClient(base_url=served.url, timeout=60) as client,
    ):
        assert error(await post(client, encoded(), temperature="0"), 400) == ("field_invalid", "temperature")


async def test_pages_of_other_origins(make_gateway):
    gateway = make_gateway(origins=("https://good.example/",))
    async with running(gateway) as served, httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
        path = "/v1/audio/transcriptions"
        asked = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,x-stainless-os",
        }
        allowed = await client.options(path, headers={"Origin": "https://good.example", **asked})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://good.example"
        assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
        read = await client.get("/v1/models", headers={"Origin": "https://good.example"})
        assert read.headers["access-control-expose-headers"] == "penstock-ignored, x-request-id, retry-after"
        rejected = await client.post(path, headers={"Origin": "https://bad.example"})
        assert error(rejected, 403)[0] == "origin_rejected"
        assert "access-control-allow-origin" not in rejected.headers


def test_segments_of_verbose_json_end_at_pauses_and_with_sentences(streams):
    words = tuple(Word(text, 100 * i, 100 * i + 90, 1.0) for i, text in enumerate(["One", "two.", "Three?", "Four"]))
    finals = [Final(0, "One two. Three? Four", words, (), 1.0, 1.0, False, False)]
    finals.append(Final(1, "five", (Word("five", 900, 990, 1.0),), (), 1.0, 1.0, True, False))
    request = parse_fields({"response_format": ["verbose_json"]}, streams, Config())
    body = json.loads(render(Transcription(finals, 1.0), request))
    assert body["text"] == "One two. Three? Four five"
    segments = [(each["id"], each["text"], each["start"], each["end"]) for each in body["segments"]]
    assert segments == [
        (0, "One two.", 0.0, 0.19),
        (1, "Three?", 0.2, 0.29),
        (2, "Four", 0.3, 0.39),
        (3, "five", 0.9, 0.99),
    ]


def test_texts_without_spaces_are_joined_without_blanks(streams):
    texts = (["今", "日", "は。", "GPU", "を。"], ["New", "York", "に"])
    starts = [0, 6]
    finals = [
        Final(
            i,
            text,
            tuple(Word(each, 100 * j, 100 * j + 90, 1.0) for j, each in enumerate(words, starts[i])),
            (),
            1.0,
            1.0,
            i > 0,
            False,
        )
        for i, (words, text) in enumerate(zip(texts, ["今日は。GPUを。", "New Yorkに"], strict=True))
    ]
    whole, transcription = "今日は。GPUを。New Yorkに", Transcription(finals, 1.0)

    def rendered(form):
        fields = {"response_format": [form], "include[]": ["logprobs"] if form == "json" else []}
        return render(transcription, parse_fields(fields, streams, Config()))

    body = json.loads(rendered("verbose_json"))
    assert (body["text"], [each["text"] for each in body["segments"]]) == (whole, ["今日は。", "GPUを。", "New Yorkに"])
    assert "".join(token["token"] for token in json.loads(rendered("json"))["logprobs"]) == whole
    assert [line for line in rendered("srt").split("\n")[2::4]] == ["今日は。", "GPUを。", "New Yorkに"]
    events = TranscriptEvents(has_logprobs=True)
    sent = [json.loads(events.add(final)[6:]) for final in finals]
    assert "".join(each["delta"] for each in sent) == json.loads(events.done(1.0)[6:])["text"] == whole
    assert "".join(token["token"] for each in sent for token in each["logprobs"]) == whole
