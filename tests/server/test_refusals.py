"""What a stream may not choose is refused by name over both protocols, before it takes a slot."""

import itertools
import json
import math

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.server.raw_stream import RawStream
from tests.server.resources import read_metrics, wait_until_free

pytestmark = pytest.mark.server

LONG = " ".join(["seven"] * 40)
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MANY = [" ".join(_WORDS[int(digit)] for digit in f"{number:030d}") for number in range(700)]
"""Each of 30 words, more than 20,000 tokens together."""
REFUSED = [
    ({"decoder": "viterbi"}, "decoder 'viterbi' is not known; known: greedy, alsd, aes"),
    ({"decoder": "alsd", "beam_size": 0}, "beam_size is 0; accepted: whole numbers from 1 to 4"),
    ({"decoder": "aes", "beam_size": 10_000}, "beam_size is 10000; accepted: whole numbers from 1 to 4"),
    ({"lm_weight": 0.5}, "lm_weight is 0.5, but no language model is loaded; accepted: 0"),
    ({"lm_weight": math.nan}, "lm_weight is nan; accepted: numbers from 0 to 10"),
    ({"lm_fusion": "eq2-late"}, "'lm_fusion' is not an option of the stream start; known: decoder,"),
    ({"boosted_phrases": '[""]'}, "phrase 1 ('') is empty; accepted: one or more words"),
    ({"boosted_phrases": json.dumps([LONG])}, "has 239 characters; accepted: 1 to 200"),
    ({"boosted_phrases": json.dumps(MANY)}, "tokens together; accepted: up to 20000 tokens"),
    ({"boosted_phrases": '["seven"]', "boost": math.nan}, "boost is nan; accepted: numbers from -"),
    ({"boosted_phrases": '["seven"]', "boost": math.inf}, "boost is inf; accepted: numbers from -"),
    ({"boosted_phrases": '[["seven", NaN]]'}, "boost nan"),
]
NAMES = (
    "decoder", "K 0", "K 10000", "no LM", "LM NaN", "LM fusion", "empty", "long", "many", "boost NaN", "boost inf",
    "own boost NaN",
)  # fmt: skip
_NUMBERS = itertools.count()
NOTHING = np.zeros(0, np.float32)


@pytest.fixture(scope="module", params=["grpc", "http"])
def refuse(request, server):
    """Starts a stream that must be refused; gives the server's words."""

    def refuse(parameters: dict) -> str:
        name = f"refused-{request.param}-{next(_NUMBERS)}"
        with RawStream(server.url(request.param), name, request.param) as stream:
            with pytest.raises(InferenceServerException) as refusal:
                stream.send(NOTHING, start=True, end=True, parameters=parameters)
            return refusal.value.message()

    # Gauges are brought up to date with requests: what earlier tests have left behind is to be gone from them.
    wait_until_free(server, 10, lambda: refuse({"decoder": "viterbi"}))
    return refuse


@pytest.mark.parametrize(("parameters", "match"), REFUSED, ids=NAMES)
def test_refused_by_name_before_a_slot_is_taken(server, refuse, parameters, match):
    before = read_metrics(server)
    message = refuse(parameters)
    after = read_metrics(server)
    assert match in message, message[:300]
    for name in ("slots_free", "streams_live", "streams_started_total", "streams_refused_total"):
        assert after[name] == before[name]
