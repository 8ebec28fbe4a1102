"""Rows of many streams in any packing give the words and times that the recognizer gives each stream alone."""

import itertools
import json
import random
from collections.abc import Iterator

import numpy as np
import pytest

from penstock import StreamingRecognizer
from penstock_client.batched.rows import Row
from tests.helpers.batch_schedule import Transcript, add_reply, batched_request, cut_into_rows, shuffle_rows, split
from tests.helpers.ensemble import Ensemble, running_ensemble
from tests.helpers.fake_triton import Request
from tests.helpers.golden import golden_samples

SIGNALS = [golden_samples("short").numpy(), golden_samples("medium").numpy()[:14_000]]
SEGMENT_ENDS = [(), (3000,), (1600, 1600, 4900)]
ENDPOINTS = '{"endpoint_silence_ms": 200, "endpoint_no_speech_ms": 200}'
OPTIONS = [None, '{"decoder": "alsd", "beam_size": 3, "n_best": 2}', '{"decoder": "ctc"}', ENDPOINTS]
STREAMS = 6


@pytest.fixture(scope="module")
def model(golden_bundle):
    return golden_bundle("rnnt_hybrid").directory


@pytest.fixture(scope="module")
def ensemble(model, tmp_path_factory) -> Iterator[Ensemble]:
    directory = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch, running_ensemble(model, patch, directory, 4 * STREAMS) as made:
        yield made


@pytest.fixture(scope="module")
def expected(model) -> dict[tuple[int, int, int], Transcript]:
    """By numbers of signal, segment ends and options."""
    recognizer = StreamingRecognizer(model, max_streams=1)
    found = {}
    kinds = itertools.product(*(range(len(kinds)) for kinds in (SIGNALS, SEGMENT_ENDS, OPTIONS)))
    for signal, ends, options in kinds:
        samples, transcript = SIGNALS[signal], Transcript()
        stream = recognizer.open_stream(options=json.loads(OPTIONS[options] or "{}"))
        borders = [0, *SEGMENT_ENDS[ends], len(samples)]
        for start, end in itertools.pairwise(borders):
            result = (stream.finish if end == len(samples) else stream.finalize)(samples[start:end])
            transcript.finals += [(one.segment, one.text) for one in result.entries if one.is_final]
            transcript.alternatives += [one.text for one in result.alternatives]
        transcript.words = [tuple(word[:3]) for word in stream.words]
        transcript.tokens = [tuple(token[:2]) for token in stream.tokens]
        found[signal, ends, options] = transcript
    assert sum(len(transcript.words) for transcript in found.values()) > 40
    return found


def check_schedules(ensemble: Ensemble, expected: dict, seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        kinds = [chance.choice(list(expected)) for _ in range(chance.randint(1, STREAMS))]
        streams = [
            cut_into_rows(number, SIGNALS[signal], SEGMENT_ENDS[ends], chance, OPTIONS[options])
            for number, (signal, ends, options) in enumerate(kinds, start=1)
        ]
        requests = list(split(shuffle_rows(streams, chance), chance, chance.choice([1, 5, 40])))
        transcripts: dict[int, Transcript] = {}
        for batch in split(requests, chance, chance.choice([1, 4])):
            sent = [batched_request(f"client-{seed}", rows, chance.random() < 0.5) for rows in batch]
            for rows, answer in zip(batch, ensemble.answer(sent), strict=True):
                assert answer.error is None, answer.error
                add_reply(transcripts, rows, answer.__getitem__)
        wanted = {number: expected[kind] for number, kind in enumerate(kinds, start=1)}
        assert transcripts == wanted, f"seed {seed}"
    assert ensemble.adapters["features"]._table.count_free() == 4 * STREAMS


def test_random_schedules_give_the_recognizer_s_words(ensemble, expected):
    check_schedules(ensemble, expected, range(12))


@pytest.mark.nightly
def test_a_thousand_random_schedules_give_the_recognizer_s_words(ensemble, expected):
    check_schedules(ensemble, expected, range(1000, 2000))


def test_clients_do_not_meet(ensemble, expected):
    """Two clients and a stream of `asr` use the same number in one batch."""
    samples, kind = SIGNALS[0], (0, 0, 0)
    rows = [Row(7, samples, 3)]
    requests = [batched_request(client, rows) for client in ("a", "b")]
    requests.append(Request({"AUDIO": samples[None]}, "{}", 3, 7))
    *batched, direct = ensemble.answer(requests)
    for answer in batched:
        transcripts: dict[int, Transcript] = {}
        add_reply(transcripts, rows, answer.__getitem__)
        assert transcripts == {7: expected[kind]}
    assert [direct["TEXT"].item().decode()] == [text for _, text in expected[kind].finals]


def test_rows_without_changes_have_no_entry(ensemble):
    rows = [Row(number, np.zeros(100, np.float32), 1) for number in (1, 2, 3)]
    rows += [Row(2, np.zeros(0, np.float32), 2), *(Row(number, np.zeros(50, np.float32), 2) for number in (1, 3))]
    (answer,) = ensemble.answer([batched_request("quiet", rows)])
    assert answer["ROW"].tolist() == [[3, 4, 5]]
    assert answer["IS_FINAL"].tolist() == [[True] * 3]
