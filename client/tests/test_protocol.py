import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.tests.helpers.fakes import SCORES, outputs, parse_reply, texts
from penstock_client import Alternative, ProtocolError, ServerDrainingError, StreamError, Transcript, Word
from penstock_client.replies import STREAM_ERRORS, parse_results, stream_error
from penstock_common.samples import as_samples


@pytest.mark.parametrize(
    "array, expected",
    [
        (np.array([0.5, -1.0]), [0.5, -1.0]),
        (np.array([0.5], np.float16), [0.5]),
        (np.array([16384, -32768], np.int16), [0.5, -1.0]),
        (np.array([0.25], ">f4"), [0.25]),
        ([], []),
    ],
)
def test_samples_become_little_endian_float32(array, expected):
    samples = as_samples(array)
    assert samples.dtype == np.dtype("<f4")
    assert samples.tolist() == expected


@pytest.mark.parametrize("array", [np.zeros((1, 4)), np.zeros(4, np.int32), np.zeros(4, bool), 3.0, ["a"]])
def test_unsuitable_samples_are_rejected(array):
    with pytest.raises(ValueError, match="samples have"):
        as_samples(array)


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(0, 5000), min_size=1, max_size=8))
def test_transcript_does_not_depend_on_the_requests(cuts):
    total = sum(cuts)
    whole, parts = Transcript(), Transcript()
    whole.add(parse_reply("s", outputs(0, total, True).get)[0])
    before = 0
    for i, cut in enumerate(cuts):
        parts.add(parse_reply("s", outputs(before, before + cut, i == len(cuts) - 1).get)[0])
        before += cut
    assert parts == whole
    assert " ".join(word.text for word in parts.words) == parts.text


def test_transcript_joins_segments_in_order():
    transcript = Transcript()
    for segment, text in ((0, "a"), (0, "a b"), (1, ""), (2, "c"), (2, "c d")):
        reply = {**outputs(0, 0, False), "SEGMENT": np.array([[segment]]), "TEXT": texts([text])}
        transcript.add(parse_reply("s", reply.get)[0])
    assert transcript.text == "a b c d"


def test_the_language_is_the_last_that_was_named():
    transcript = Transcript()
    assert transcript.language == ""
    for segment, language in ((0, ""), (0, "en-US"), (0, "de-DE"), (1, "")):
        reply = {**outputs(0, 0, False), "SEGMENT": np.array([[segment]]), "LANGUAGE": texts([language])}
        result = parse_reply("s", reply.get)[0]
        transcript.add(result)
        assert result.language == language
    assert [segment.language for segment in transcript.segments] == ["de-DE", ""]
    assert transcript.language == "de-DE"


def test_reply_is_parsed_into_python_values():
    result = parse_reply("s", outputs(0, 1600, True).get)[0]
    assert result.new_words == (Word("wörd0", 0, 50, 1.0), Word("λέξη1", 50, 100, 0.875))
    assert result.alternatives == ()
    assert (result.segment, result.text, result.is_final) == (3, "wörd0 λέξη1", True)
    assert (result.new_tokens, result.new_timestamps) == ((0, 1), (0, 2))
    assert result.audio_processed_s == pytest.approx(0.1)
    assert {type(value) for value in (result.segment, *result.new_tokens, *result.new_timestamps)} == {int}
    assert type(result.is_final) is bool


def test_alternatives_are_parsed_in_their_order():
    result = parse_reply("s", outputs(0, 800, True, n_best=2).get)[0]
    assert result.alternatives == (
        Alternative("wörd0 (0)", -0.5, (Word("wörd0", 0, 80, 0.0),)),
        Alternative("wörd0 (1)", -1.5, (Word("wörd0", 0, 80, 0.25),)),
    )
    assert {type(alternative.score) for alternative in result.alternatives} == {float}


def test_a_server_without_scores_is_supported():
    reply = {name: values for name, values in outputs(0, 1600, True, n_best=2).items() if name not in SCORES}
    result = parse_reply("s", reply.get)[0]
    assert result.new_words == (Word("wörd0", 0, 50), Word("λέξη1", 50, 100))
    assert [word.confidence for word in result.new_words] == [None, None]
    assert (result.alternatives, result.language) == ((), "")


def test_transcript_keeps_the_alternatives_of_the_final_result():
    transcript = Transcript()
    for segment, is_final in ((0, True), (1, False)):
        reply = {**outputs(0, 800, is_final, n_best=2), "SEGMENT": np.array([[segment]])}
        transcript.add(parse_reply("s", reply.get)[0])
    assert [alternative.score for alternative in transcript.alternatives] == [-0.5, -1.5]


@pytest.mark.parametrize("name", [name for name in outputs(0, 0, True) if name not in SCORES])
def test_missing_output_is_named(name):
    reply = outputs(0, 1600, True)
    del reply[name]
    with pytest.raises(ProtocolError, match=f"stream 7: .*{name}"):
        parse_reply(7, reply.get)[0]


@pytest.mark.parametrize(
    "name, values",
    [
        ("TEXT", np.zeros((1, 0), np.object_)),
        ("TEXT", np.array([[b"\xff"]], np.object_)),
        ("TEXT", np.array([[1]])),
        ("SEGMENT", np.array([[1, 2]])),
        ("WORD_END_MS", np.array([[1]])),
        ("WORD_CONFIDENCE", np.array([[0.5]], np.float32)),
        ("ALTERNATIVES", texts(["a"])),
        ("ALTERNATIVE_SCORES", np.array([[-1.0]], np.float32)),
        ("ALTERNATIVE_WORDS", texts(["[]"])),
        # values that no server of Penstock sends
        ("SEGMENT", np.array([[-7]])),
        ("SEGMENT", np.array([[0.0]])),
        ("IS_FINAL", np.array([[1]])),
        *(("AUDIO_PROCESSED", np.array([[value]], np.float32)) for value in (np.nan, np.inf, -0.1)),
        *(("STABLE_CHARS", np.array([[value]])) for value in (-1, 12, 2**31)),
        ("WORD_START_MS", np.array([[0, -50]])),
        ("WORD_END_MS", np.array([[50.0, 100.0]])),
        *(("WORD_CONFIDENCE", np.array([[0.5, value]], np.float32)) for value in (np.nan, np.inf, -0.1, 1.1)),
        ("TOKENS", np.array([[0, -1]])),
    ],
)
def test_malformed_output_is_a_protocol_error(name, values):
    with pytest.raises(ProtocolError, match=r"stream 's': .*cannot be read"):
        parse_reply("s", {**outputs(0, 1600, True), name: values}.get)[0]


@pytest.mark.parametrize(
    "name, values",
    [
        *(("ALTERNATIVE_SCORES", np.array([[value]], np.float32)) for value in (np.nan, np.inf, -np.inf)),
        *(
            ("ALTERNATIVE_WORDS", texts([words]))
            for words in (
                '[["a", 0]]', '[["a", -1, 80, 0.5]]', '[["a", 0, NaN, 0.5]]', '[["a", 0, 80, Infinity]]',
                '[["a", 0, 80, "0"]]', '[[1, 0, 80, 0.5]]', "[" * 100_000,
            )
        ),
    ],
)  # fmt: skip
def test_malformed_alternative_is_a_protocol_error(name, values):
    with pytest.raises(ProtocolError, match=r"stream 's': .*cannot be read"):
        parse_reply("s", {**outputs(0, 1600, True, n_best=1), name: values}.get)


@pytest.mark.parametrize("prefix", ["", "in ensemble 'asr', "])
@pytest.mark.parametrize("code", [*STREAM_ERRORS, "NOT_KNOWN_YET"])
def test_each_code_has_its_exception(prefix, code):
    text = "stream 's' rejected: it contains \"STREAM_LIMIT: 'UNAVAILABLE'\" and must specify the START flag"
    error = stream_error("s", f"{prefix}{code}: {text}")
    assert type(error) is STREAM_ERRORS.get(code, StreamError)
    assert (error.stream_id, error.code, error.message) == ("s", code, text)
    assert str(error) == f"{code}: {text}"


@pytest.mark.parametrize(
    "message, code, kind",
    [
        (
            "Server is stopping, scheduler for model has stopped accepting new inference requests",
            "SERVER_DRAINING",
            ServerDrainingError,
        ),
        ("Server not ready", "SERVER_DRAINING", ServerDrainingError),
        ("Request for unknown model: 'asr' has no available versions", "SERVER_DRAINING", ServerDrainingError),
        ("Request for unknown model: 'asr' is not found", "TRITON_ERROR", StreamError),
        ("Stub process 'decoder_0_0' is not healthy.", "TRITON_ERROR", StreamError),
        ("unexpected shape for input 'STREAM_LIMIT: ' for model 'features'", "TRITON_ERROR", StreamError),
    ],
)
def test_tritons_own_errors_have_no_codes(message, code, kind):
    error = stream_error("s", f"in ensemble 'asr', {message}")
    assert type(error) is kind
    assert (error.code, error.message) == (code, message)
    assert str(error) == f"{code}: stream 's': {message}"


def test_a_server_s_error_is_one_line():
    assert "\n" not in str(stream_error("s", "bad\n  thing"))


def joined(replies: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One reply with the results of several."""
    found = {name: np.concatenate([reply[name] for reply in replies], axis=1) for name in replies[0]}
    lists = ("WORDS", "TOKENS", "ALTERNATIVES")
    found["LIST_COUNTS"] = np.array([[reply[name].shape[1] for reply in replies for name in lists]], np.int32)
    return found


def values_of(reply: dict[str, np.ndarray]):
    return lambda name: reply[name].ravel().tolist() if name in reply else None


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.tuples(st.integers(0, 5000), st.booleans()), min_size=1, max_size=6))
def test_several_results_of_a_reply_are_those_of_several_replies(cuts):
    replies, before = [], 0
    for samples, is_final in cuts:
        replies.append(outputs(before, before + samples, is_final))
        before += samples
    assert parse_results("s", values_of(joined(replies))) == [parse_reply("s", reply.get)[0] for reply in replies]


def test_stable_characters():
    reply = outputs(0, 4000, True)
    assert parse_reply("s", reply.get)[0].stable_chars == 0
    assert parse_reply("s", (reply | {"STABLE_CHARS": np.array([[3]], np.int32)}).get)[0].stable_chars == 3


@pytest.mark.parametrize("counts", [[], [1, 1, 0], [1, 1, 0, 1, 1], [-1, 1, 0, 3, 1, 0], [2, 2, 0, 1, 2, 0]], ids=str)
def test_counts_that_do_not_fit_are_rejected(counts):
    reply = joined([outputs(0, 4000, True)] * 2) | {"LIST_COUNTS": np.array([counts], np.int32)}
    with pytest.raises(ProtocolError, match="LIST_COUNTS is"):
        parse_results("s", values_of(reply))
