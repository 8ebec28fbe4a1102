"""Codes: documented, known to the client, and in front of every error's text."""

import re
from pathlib import Path

import pytest

from penstock.errors import STREAM_ERROR_KINDS, ErrorCode, StreamError, split_code
from penstock_client.replies import STREAM_ERRORS, stream_error
from penstock_common import errors as client_errors

ROOT = Path(__file__).resolve().parents[1]


def documented(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading of docs/serving.md that has codes, without what to do."""
    section = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    table = re.search(r"^\| code .*\n\|[-|]+\|\n((?:\|.*\n)+)", section, re.MULTILINE)
    lines = table[1].splitlines()
    return [[cell.strip(" `").partition(": ")[0] for cell in line.strip("|\n").split("|")] for line in lines]


def test_the_codes_of_a_server_are_documented_with_their_status():
    rows = {code: (meaning, status) for code, meaning, status, *_ in documented("## Errors")}
    assert rows == {code.name: (code.value, kind.name) for code, kind in STREAM_ERROR_KINDS.items()}


def test_the_other_codes_are_documented():
    rows = {code: meaning for code, meaning, *_ in documented("### Errors of commands and of the library")}
    assert rows == {code.name: code.value for code in ErrorCode if code not in STREAM_ERROR_KINDS}


def test_the_client_knows_the_codes_of_a_server():
    assert STREAM_ERRORS.keys() == {code.name for code in STREAM_ERROR_KINDS}


def test_the_codes_of_the_client_s_exceptions_are_documented():
    readme = (ROOT / "client" / "README.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `(\w+Error)` \| `?([A-Z_, `]*)`? \|", readme, re.MULTILINE))
    codes = {name: error.code for name, error in vars(client_errors).items() if hasattr(error, "code")}
    assert table.keys() == codes.keys()
    assert all(code in table[name] for name, code in codes.items())


@pytest.mark.parametrize("code", STREAM_ERROR_KINDS)
def test_a_server_s_error_reaches_the_client_with_its_code(code):
    error = StreamError(code, "stream 's': CODE_IN: the middle\nand a line")
    assert str(error).startswith(f"{code.name}: ")
    assert split_code(str(error)) == (code.name, error.message)
    assert stream_error("s", f"in ensemble 'asr', {error}").code == code.name


@pytest.mark.parametrize("text", ["", "no code", "Code: no", "CODE: one word is none", "in A_CODE: not in front"])
def test_a_text_without_a_code(text):
    assert split_code(text) == (None, text)
    assert split_code(f"in ensemble 'asr', {text}") == (None, text)


def test_every_class_of_errors_has_a_code_and_none_is_raised_without():
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("src", "client/src", "loadtest", "scripts", "benchmarks", "recipes", "model_repository")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert not [text for text in sources if re.search(r"\braise (PenstockError|ClientError)\b", text)]
    used = {name for text in sources for name in re.findall(r"ErrorCode\.([A-Z_]+)", text)}
    assert used == {code.name for code in ErrorCode}
    assert all(re.fullmatch(r"[A-Z]+(_[A-Z]+)+", code.name) for code in ErrorCode)
