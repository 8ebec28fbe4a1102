"""Normalizers: what each removes, and the package that its name tells."""

from importlib.metadata import version

import pytest

from penstock.evaluation.normalizers import BASIC, NONE, WHISPER, Normalizer


@pytest.mark.parametrize(
    ("text", "none", "basic", "whisper"),
    [
        ("  Enter\tone OH four. ", "enter one oh four.", "enter one oh four", "enter 104"),
        ("Hello, Mr. Bond.<en-US> <EOU>", "hello, mr. bond.", "hello mr bond", "hello mister bond"),
        ("It's the [noise] colour, um", "it's the [noise] colour, um", "it s the colour um", "it is the color"),
        ("Zürich -  naïve", "zürich - naïve", "zürich naïve", "zurich naive"),
        ("हिन्दी में।", "हिन्दी में।", "हिन्दी में", None),
        ("Um ...", "um ...", "um", "."),
        ("", "", "", ""),
    ],
)
def test_what_each_removes(text, none, basic, whisper):
    assert [Normalizer(name)(text) for name in (NONE, BASIC)] == [none, basic]
    assert whisper is None or Normalizer(WHISPER)(text) == whisper


def test_the_package_is_named():
    assert str(Normalizer()) == "none"
    assert str(Normalizer(WHISPER)) == f"whisper (whisper-normalizer {version('whisper-normalizer')})"


def test_numbers_are_figures_in_both_texts_alike():
    normalizer = Normalizer(numbers="en")
    assert normalizer("Room TWENTY five <en-US>") == normalizer("room 25") == "room 25"
    assert normalizer("one of them") == "one of them"
    assert str(normalizer) == "none, numbers as figures (en)"
