"""Forms of an upload as clients write them, byte for byte."""

import numpy as np
import pytest

from client.tests.helpers.sound_files import sound_file
from gateway.tests.helpers.fake_streams import speech
from gateway.tests.helpers.running import http_client

WORDS = "w0 w1 w2"
SMALL = sound_file(speech(0.3))
LARGE = sound_file(np.concatenate([speech(0.3), np.zeros(1_500_000, np.float32)]))
"""3 MB: more than a field may have."""
MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper-1'


def file_part(parameters: str, content: bytes = SMALL, more: str = "", head: str = "Content-Disposition") -> bytes:
    return f"{head}: form-data; {parameters}\r\n{more}\r\n".encode() + content


async def post(gateway, *parts: bytes, media_type: str = "multipart/form-data"):
    form = b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + b"--x--\r\n"
    async with http_client(gateway) as client:
        headers = {"content-type": f"{media_type}; boundary=x"}
        return await client.post("/v1/audio/transcriptions", content=form, headers=headers)


@pytest.mark.parametrize(
    "part",
    [
        file_part('name="file"'),
        file_part("name=file"),
        file_part('name="file"', LARGE),
        file_part('name="file"', more="Content-Type: audio/wav\r\n"),
        file_part('name="file"; filename=""', LARGE),
        file_part('name="file"; filename'),
        file_part("name=\"file\"; filename*=UTF-8''%D0%B7%D0%B2%D1%83%D0%BA.wav", LARGE),
        file_part("name=\"file\"; filename*=other''%zz"),
        file_part('NAME="file"; FileName*=a', head="content-disposition"),
        file_part('name="file"; filename="a\\"b.wav"', head="CONTENT-DISPOSITION"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
async def test_the_part_file_is_a_file_with_any_file_name_or_none(gateway, part, is_first):
    response = await post(gateway, *((part, MODEL) if is_first else (MODEL, part)))
    assert (response.status_code, response.json()["text"]) == (200, WORDS), response.text


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([file_part('name="file"'), file_part('name="file"; filename="b"')], "Too many files"),
        ([file_part("name=\"file\"; filename*=UTF-8''a"), file_part('name="file"')], "Too many files"),
        ([file_part('filename="a.wav"')], '"name" must be provided'),
        ([file_part("filename=a.wav; name*=UTF-8''file")], '"name" must be provided'),
        ([file_part('name="audio"')], "file is missing"),
        ([file_part('name="file"', b"")], "the audio is empty"),
        ([file_part('name="file"', b"call.wav")], "begins with 'call.wav'"),
        ([b"Content-Type: audio/wav\r\n\r\n" + SMALL], '"name" must be provided'),
    ],
)
async def test_a_form_without_one_file_says_why(gateway, parts, message):
    response = await post(gateway, MODEL, *parts)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert response.json()["error"]["code"] in ("field_invalid", "audio_invalid")
    assert not gateway.recordings.used["anonymous"]


@pytest.mark.parametrize(
    "parts",
    [
        [file_part('name="model"', LARGE), file_part('name="file"')],
        [file_part('name="file"'), *[file_part('name="prompt"', b"x" * 600_000 + "\U0001f600".encode())] * 2],
        [file_part(f'name="{"a" * 4000}"', b"")] * 300,
        [file_part('name="a"', b"", more=f"X: {'a' * 4000}\r\n")] * 300,
    ],
    ids=["one text", "texts", "names", "headers"],
)
async def test_all_fields_of_a_form_have_a_limit(gateway, parts):
    response = await post(gateway, *parts)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")
    assert response.json()["error"]["message"] == "the fields of the form have more than 1,048,576 bytes"


async def test_another_media_type_has_no_file(gateway):
    response = await post(gateway, file_part('name="file"'), media_type="multipart/mixed")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "file")
