"""Phrases are written in a model's alphabet, or not at all."""

import string

import pytest

from penstock_common.phrases import fit_phrase, written_forms

CAPLESS = frozenset(string.ascii_lowercase + "'")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Rubout", "rubout"),
        ("Müller", "muller"),
        ("Zürich  Straße", "zurich strasse"),
        ("Łódź", "lodz"),
        ("O\u2019Brien", "o'brien"),
        ("U.S.A.", "usa"),
        ("real-time, New York!", "real time new york"),
        ("\uff4eine", "nine"),  # a full-width n
        ("Penstock™", "penstock"),
        ("24/7", None),
        ("AT&T", None),
        ("Москва", None),
        ("...", None),
    ],
)
def test_a_phrase_is_fitted_to_letters_without_capitals(text, written):
    assert fit_phrase(text, CAPLESS) == written


def test_other_alphabets_keep_what_they_have():
    assert fit_phrase("O'Brien", frozenset(string.ascii_lowercase)) == "obrien"
    assert fit_phrase("Müller 24", frozenset("Mülleré24")) == "Müller 24"
    assert fit_phrase("rubout", frozenset(string.ascii_uppercase)) == "RUBOUT"
    assert fit_phrase("Москва", frozenset("москва")) == "москва"
    assert fit_phrase("йод", frozenset("иод")) is None  # another letter, not one with a mark


def test_the_forms_of_a_phrase_in_each_case():
    both = frozenset(string.ascii_letters + "-")
    assert written_forms("ada lovelace", both) == ["ada lovelace", "Ada Lovelace", "Ada lovelace", "ADA LOVELACE"]
    assert written_forms("iPod", both) == ["iPod", "Ipod", "IPOD", "ipod"]
    assert written_forms("24", both) == ["24"]
    assert written_forms("Zürich", both)[:2] == ["Zürich", "Zurich"]
