"""A member's environment: every variable, its default, and wrong values by name."""

import os
import re

import pytest
import torch

from penstock.config import AttentionContext
from penstock.errors import PenstockError
from penstock.model_repository import find_model_repository
from penstock.settings import DEFAULT_MAX_STREAMS, MOST_STREAMS, Settings, parse_context


@pytest.fixture
def environment(golden_bundle) -> dict[str, str]:
    return {"PENSTOCK_MODEL": str(golden_bundle("rnnt_hybrid").directory)}


def test_the_model_alone_is_enough(environment):
    settings = Settings.from_environment(environment)
    assert settings.checkpoint.config.transducer.vocabulary_size == 48
    assert settings.context == AttentionContext(14, 6)
    assert (settings.max_streams, settings.slots) == (DEFAULT_MAX_STREAMS, DEFAULT_MAX_STREAMS * 9 // 8)
    assert (settings.idle_limit_s, settings.threads) == (None, 1)
    assert settings.device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert settings.runtime_directory.name == f"penstock-{os.getppid()}"  # the members have one parent


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("PENSTOCK_CONTEXT", "6,1", "context", (6, 1)),
        ("PENSTOCK_CONTEXT", "[5, 0]", "context", (5, 0)),
        ("PENSTOCK_MAX_STREAMS", "7", "max_streams", 7),
        ("PENSTOCK_IDLE_SECONDS", "2.5", "idle_limit_s", 2.5),
        ("PENSTOCK_DEVICE", "cpu", "device", "cpu"),
        ("PENSTOCK_DEVICE", "cuda:1", "device", "cuda:1"),
        ("PENSTOCK_THREADS", "3", "threads", 3),
    ],
)
def test_a_variable_sets_its_field(environment, variable, text, field, value):
    assert getattr(Settings.from_environment(environment | {variable: text}), field) == value


@pytest.mark.parametrize("variable", ["CONTEXT", "MAX_STREAMS", "IDLE_SECONDS", "RUNTIME_DIR", "DEVICE", "THREADS"])
def test_an_empty_variable_is_as_none(environment, variable):
    plain, empty = (Settings.from_environment(environment | extra) for extra in ({}, {f"PENSTOCK_{variable}": ""}))
    fields = ("context", "max_streams", "idle_limit_s", "runtime_directory", "device", "threads")
    assert all(getattr(plain, field) == getattr(empty, field) for field in fields)


@pytest.mark.parametrize("text", ["0", "-3", "x", "nan"])
@pytest.mark.parametrize("variable", ["PENSTOCK_MAX_STREAMS", "PENSTOCK_IDLE_SECONDS", "PENSTOCK_THREADS"])
def test_a_wrong_number_is_named(environment, variable, text):
    with pytest.raises(PenstockError, match=f"{variable} is '{text}', expected a positive number"):
        Settings.from_environment(environment | {variable: text})


@pytest.mark.parametrize("variable", ["PENSTOCK_MAX_STREAMS", "PENSTOCK_THREADS"])
def test_half_a_stream_is_named(environment, variable):
    with pytest.raises(PenstockError, match=variable):
        Settings.from_environment(environment | {variable: "1.5"})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"PENSTOCK_MODEL": ""}, "PENSTOCK_MODEL is not set"),
        ({"PENSTOCK_MODEL": "/nowhere"}, "/nowhere: not a bundle"),
        ({"PENSTOCK_CONTEXT": "6"}, "context '6': expected LEFT,RIGHT"),
        ({"PENSTOCK_MAX_STREAMS": "4001"}, "4001 streams are not supported; supported: up to 4000"),
        ({"PENSTOCK_CONTEXT": "70,6"}, r"context \[70,6\] is not one of this checkpoint's: \[14,6\] \[12,3\]"),
    ],
)
def test_a_wrong_model_or_context_is_named(environment, changes, match):
    with pytest.raises(PenstockError, match=match):
        Settings.from_environment(environment | changes)


def test_triton_can_hold_more_sequences_than_there_may_be_streams():
    for member in ("features", "encoder", "decoder"):
        text = (find_model_repository() / member / "config.pbtxt").read_text(encoding="utf-8")
        (candidates,) = re.findall(r"max_candidate_sequences: (\d+)", text)
        assert int(candidates) > MOST_STREAMS


def test_no_model_at_all():
    with pytest.raises(PenstockError, match="PENSTOCK_MODEL is not set"):
        Settings.from_environment({})


@pytest.mark.parametrize("text", ["70,6", "70, 6", "[70,6]", " 70,6 "])
def test_contexts_in_words(text):
    assert parse_context(text) == AttentionContext(70, 6)


@pytest.mark.parametrize("text", ["", "70", "70,6,1", "a,b", "70;6", "7.5,1"])
def test_a_wrong_context_is_quoted(text):
    with pytest.raises(PenstockError, match=f"context '{text}': expected LEFT,RIGHT"):
        parse_context(text)


def test_members_with_one_runtime_directory_share_a_ledger(environment, tmp_path):
    settings = Settings.from_environment(environment | {"PENSTOCK_RUNTIME_DIR": str(tmp_path / "run")})
    first, second = settings.open_ledger(), settings.open_ledger()
    first.settle("encoder", settings.slots - 1)
    assert second.settled_requests()[-1] == 1
    assert (tmp_path / "run" / "slots").exists()
