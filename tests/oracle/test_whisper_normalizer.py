"""`whisper` is the normalizer of Transformers, which open_asr_leaderboard began with, on 200 sentences."""

import json
from importlib.resources import files
from itertools import product

import pytest

from penstock.evaluation.normalizers import WHISPER, Normalizer

pytestmark = pytest.mark.oracle

HEADS = (
    "Well, um,", "Mr. O'Neil's sister said:", "[laughs] They", "I won't, and she'd", "In the nineteen sixties we",
    "On June 21st, 2024,", "Dr. Müller (from Zürich)", "IT'S HALF PAST NINE —", "At $3.50 each you", "The B.B.C.",
)  # fmt: skip
TAILS = (
    "paid twenty five dollars and fifty cents.", "analysed the colour of the centre!", "flew 1,200 miles at 7.5 mph",
    "got 33 1/3 percent of it", "counted one oh one, double seven", "don't wanna go there...", "met Capt. Hook, Jr.",
    "y'all should've called 555-0199", "“quoted” the café's naïve façade", "sold five million three hundred thousand",
    "finished first, second and thirty-third", "won £5 and 20 cents", "saw O'Hare's gate B12", "said OK to the cheque",
    "ordered two and a half pizzas", "uh-huh, mm, hmm", "live at 221b Baker Street", "have 0.5 % less",
    "grew by minus ten degrees", "left at 10:30 p.m., I'd say",
)  # fmt: skip


def test_the_texts_are_those_of_transformers():
    whisper = pytest.importorskip("transformers.models.whisper.english_normalizer")
    spelling = json.loads(files("whisper_normalizer").joinpath("normalizers/english.json").read_text())
    expected, normalizer = whisper.EnglishTextNormalizer(spelling), Normalizer(WHISPER)
    sentences = [" ".join(parts) for parts in product(HEADS, TAILS)]
    assert len(sentences) == 200
    assert [normalizer(each) for each in sentences] == [" ".join(expected(each).split()) for each in sentences]
    # whisper-normalizer adds these four
    assert normalizer("kinda, sorta, dunno 'cause") == "kind of sort of do not know because"
