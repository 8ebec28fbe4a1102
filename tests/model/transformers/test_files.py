"""Files in Transformers format that are broken, too large or point elsewhere."""

import json

import pytest

from penstock.errors import CheckpointError
from penstock.model.transformers.files import MAX_JSON_BYTES, _without_duplicates, content_sha256, model_type, read_json
from tests.helpers.transformers_files import assert_rejected, write_transformers


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_transformers(tmp_path_factory.mktemp("files") / "hf")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe{", "not JSON"),
        (b"[]", "contains a list; accepted: an object"),
        (b'{"a": 1, "a": 2}', "key 'a' occurs twice"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": ' + 10**5 * b"[" + 10**5 * b"]" + b"}", "nested deeper than 40"),
        (b'{"a": ' + 41 * b"[" + b"1" + 41 * b"]" + b"}", "nested deeper than 40"),
        (b'{"a": ' + 10**5 * b"9" + b"}", "not JSON"),
        (b'{"a": "' + MAX_JSON_BYTES * b"x" + b'"}', "has more than 1048576 bytes"),
    ],
    ids=["cut", "encoding", "list", "twice", "nan", "recursion", "deep", "digits", "large"],
)
def test_json_is_untrusted(tmp_path, data, match):
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{match}"):
        read_json(tmp_path / "config.json")


def test_a_repeated_key_is_found_among_many(monkeypatch):
    """By looking it up: comparing all of them takes hours in a file of 64 MiB."""

    class Key(str):
        compared = 0
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            Key.compared += 1
            return str(self) == str(other)

    keys = [Key(i) for i in range(1000)]
    with pytest.raises(ValueError, match="key '7' occurs twice"):
        _without_duplicates([(key, 0) for key in (*keys, Key(7))])
    assert Key.compared < 2000


def test_depth_of_forty_is_accepted(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"a": ' + 39 * b"[" + b"1" + 39 * b"]" + b"}")
    read_json(tmp_path / "config.json")


def test_what_a_directory_is(whole, tmp_path):
    assert model_type(whole) == "nemotron_asr_streaming"
    assert model_type(tmp_path) is None
    (tmp_path / "config.json").write_text('{"format": "penstock-bundle"}')
    assert model_type(tmp_path) is None


@pytest.mark.parametrize("name", ["config.json", "processor_config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path, name):
    source = write_transformers(tmp_path / "hf")
    (source / name).unlink()
    assert_rejected(source, name)


@pytest.mark.parametrize(
    "shard", ["../model.safetensors", "a/b.safetensors", "/etc/passwd", "a.bin", "c:b.safetensors", 1]
)
def test_shards_lie_beside_the_index(tmp_path, shard):
    source = write_transformers(tmp_path / "hf")
    (source / "model.safetensors").rename(tmp_path / "model.safetensors")
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    assert_rejected(source, r"index\.json: .* is not supported; supported: names of files beside it")


@pytest.mark.parametrize("places", [None, {}, ["a"]])
def test_an_index_without_shards(tmp_path, places):
    source = write_transformers(tmp_path / "hf")
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert_rejected(source, r"index\.json: weight_map")


def test_the_key_of_a_checkpoint_is_its_content(whole, tmp_path):
    copy = write_transformers(tmp_path / "elsewhere")
    assert content_sha256(copy) == content_sha256(whole)
    (copy / "README.md").write_text("not part of it")
    assert content_sha256(copy) == content_sha256(whole)
    (copy / "tokenizer.json").write_text("{}")
    assert content_sha256(copy) != content_sha256(whole)
