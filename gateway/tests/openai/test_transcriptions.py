"""`/v1/audio/transcriptions` and `/v1/models` on a real socket, with streams whose words follow from the audio."""

import asyncio
import tempfile

import httpx2
import pytest

from client.tests.helpers.sound_files import media_file
from gateway.tests.helpers.openai_calls import AUDIO, encoded, error, events_of, post, unfinished_upload
from gateway.tests.helpers.running import http_client, running
from penstock_gateway import limits
from penstock_gateway.audio.container import DecodedRecording
from penstock_gateway.errors import GatewayCode, GatewayError


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
    assert srt.text.startswith("1\n00:00:00,000 --> 00:00:01,700\nw0 w1 w2 w3 w4\n")
    vtt = await post(client, encoded(), response_format="vtt")
    assert vtt.text.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.700\nw0 w1 w2 w3 w4\n")
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
        ({"known_speaker_names[]": list("abcdefghi")}, "known_speaker_names"),
        ({"known_speaker_names[]": ["Ada", "Ada "]}, "known_speaker_names"),
        ({"known_speaker_names[]": ["Ada", "unknown"]}, "known_speaker_names"),
        ({"stream": "yes"}, "stream"),
        ({"stream": "true", "response_format": "srt"}, "response_format"),
        ({"include[]": "words"}, "include"),
        ({"timestamp_granularities[]": "char"}, "timestamp_granularities"),
        ({"chunking_strategy": "manual"}, "chunking_strategy"),
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
            _, writer = await unfinished_upload(served, path=path)
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
        reader, writer = await unfinished_upload(served, path=path)
        status = await reader.readline()
        assert b" 408 " in status
        assert b"no part of the request arrived for 0.05 s" in await reader.read()
        writer.close()


async def test_a_file_that_breaks_off_in_the_middle_is_rejected_and_frees_its_stream(client, streams, monkeypatch):
    async def blocks(_):
        yield AUDIO
        raise GatewayError(GatewayCode.AUDIO_INVALID, "the audio is damaged")

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
    async with http_client(make_gateway(strict=True)) as client:
        assert error(await post(client, encoded(), temperature="0"), 400) == ("field_invalid", "temperature")


async def test_pages_of_other_origins(make_gateway):
    gateway = make_gateway(origins=("https://good.example/",))
    async with http_client(gateway) as client:
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
