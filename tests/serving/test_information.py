"""The fingerprint of a server: the same where the words are."""

import shutil

import pytest

from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.serving.information import fingerprint, server_information
from penstock_common.server_info import parse_server_info

CONTEXT, DECODING = AttentionContext(70, 6), DecodingConfig()


@pytest.fixture
def checkpoint(golden_bundle):
    return golden_bundle("rnnt_hybrid")


def test_a_copy_on_another_host_is_the_same(checkpoint, tmp_path):
    shutil.copytree(checkpoint.directory, tmp_path / "other name")
    first = fingerprint(checkpoint, CONTEXT, DECODING)
    assert first == fingerprint(Checkpoint(tmp_path / "other name"), CONTEXT, DecodingConfig(cuda_graphs="no_graphs"))
    context = checkpoint.config.encoder.contexts[0]
    found = server_information(checkpoint, context, DECODING, 4, 30.0)["penstock_fingerprint"]
    assert found == fingerprint(checkpoint, context, DECODING)


def test_an_offline_model_publishes_the_audio_that_its_server_holds(checkpoint):
    found = server_information(checkpoint, None, DECODING, 4, 30.0, max_audio_s=900)
    assert parse_server_info(found).max_audio_s == 900
    assert parse_server_info(server_information(checkpoint, CONTEXT, DECODING, 4, 30.0)).max_audio_s == 0


def test_precisions_that_may_follow_from_the_device_do_not_change_it(checkpoint):
    found = [
        server_information(checkpoint, CONTEXT, DECODING, 4, 30.0, precision=each)
        for each in ("auto", "float32", "int8")
    ]
    assert [each.get("precision") for each in found] == [None, "float32", "int8"]
    assert found[0]["penstock_fingerprint"] == found[1]["penstock_fingerprint"] != found[2]["penstock_fingerprint"]


def test_what_decides_the_words_changes_it(checkpoint, golden_bundle, tmp_path):
    lm = tmp_path / "a.lm"
    lm.write_bytes(b"one")
    made = [
        fingerprint(checkpoint, CONTEXT, DECODING),
        fingerprint(golden_bundle("rnnt_bytes"), CONTEXT, DECODING),
        fingerprint(checkpoint, AttentionContext(70, 1), DECODING),
        fingerprint(checkpoint, CONTEXT, DecodingConfig(beam_size=2)),
        fingerprint(checkpoint, CONTEXT, DecodingConfig(lm=str(lm))),
        fingerprint(checkpoint, CONTEXT, DECODING, "int8"),
    ]
    lm.write_bytes(b"two")
    made.append(fingerprint(checkpoint, CONTEXT, DecodingConfig(lm=str(lm))))
    assert len(set(made)) == len(made)
    moved = lm.rename(tmp_path / "b.lm")
    assert fingerprint(checkpoint, CONTEXT, DecodingConfig(lm=str(moved))) == made[-1]
