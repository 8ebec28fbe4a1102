import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.tests.fakes import SCORES, outputs, texts
from penstock_client import (
    Alternative,
    ProtocolError,
    ServerFullError,
    StreamClosedError,
    StreamError,
    StreamNotOpenError,
    Transcript,
    Word,
)
from penstock_client.protocol import (
    END_PIECE,
    MAX_PIECE_SAMPLES,
    PieceCutter,
    as_samples,
    check_stream_id,
    parse_reply,
    refusal,
)


@settings(max_examples=50, deadline=None)
@given(pushes=st.lists(st.integers(0, 40), min_size=1, max_size=12), limit=st.integers(1, 16))
def test_pieces_carry_all_audio_in_order_with_one_first_and_one_last(pushes, limit):
    audio = np.arange(sum(pushes), dtype=np.float32)
    cutter = PieceCutter("s", limit)
    pieces = []
    for i, push in enumerate(np.split(audio, np.cumsum(pushes)[:-1])):
        pieces += cutter.cut(push, is_last=i == len(pushes) - 1)

    assert np.array_equal(np.frombuffer(b"".join(piece.audio for piece in pieces), "<f4"), audio)
    assert all(piece.samples <= limit for piece in pieces)
    assert len(pieces) >= len(pushes)
    assert [i for i, piece in enumerate(pieces) if piece.is_first] == [0]
    assert [i for i, piece in enumerate(pieces) if piece.is_last] == [len(pieces) - 1]


def test_limit_of_a_request_is_thirty_seconds():
    sizes = [piece.samples for piece in PieceCutter("s").cut(np.zeros(MAX_PIECE_SAMPLES + 1))]
    assert sizes == [30 * 16_000, 1]


@settings(max_examples=20, deadline=None)
@given(pushes=st.lists(st.integers(0, 40), min_size=1, max_size=5), limit=st.integers(1, 16))
def test_parameters_go_with_the_first_piece_only(pushes, limit):
    cutter = PieceCutter("s", limit, {"n_best": 2})
    pieces = [piece for push in pushes for piece in cutter.cut(np.zeros(push))]
    assert [piece.parameters for piece in pieces] == [{"n_best": 2}] + [{}] * (len(pieces) - 1)
    assert END_PIECE.parameters == {}


def test_nothing_follows_the_last_piece():
    cutter = PieceCutter("s")
    cutter.cut([], is_last=True)
    with pytest.raises(StreamClosedError, match=r"stream 's': .*finished"):
        cutter.cut([0.0])


def test_unsuitable_samples_do_not_use_up_the_first_piece():
    cutter = PieceCutter("s")
    with pytest.raises(ValueError):
        cutter.cut(np.zeros((2, 2)))
    assert cutter.cut([])[0].is_first


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
def test_unsuitable_samples_are_refused(array):
    with pytest.raises(ValueError, match="samples have"):
        as_samples(array)


@pytest.mark.parametrize("stream_id", [1, 2**63 - 1, "a", "x" * 128, "é" * 64, "a b/:"])
def test_ids_that_triton_takes(stream_id):
    assert check_stream_id(stream_id) == stream_id


@pytest.mark.parametrize("stream_id", [0, -1, 2**63, "", "x" * 129, "é" * 65, True, 1.0, None])
def test_ids_that_triton_does_not_take(stream_id):
    with pytest.raises(ValueError, match="stream id is"):
        check_stream_id(stream_id)


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(0, 5000), min_size=1, max_size=8))
def test_transcript_does_not_depend_on_the_pieces(cuts):
    total = sum(cuts)
    whole, parts = Transcript(), Transcript()
    whole.add(parse_reply("s", outputs(0, total, True).get))
    before = 0
    for i, cut in enumerate(cuts):
        parts.add(parse_reply("s", outputs(before, before + cut, i == len(cuts) - 1).get))
        before += cut
    assert parts == whole
    assert " ".join(word.text for word in parts.words) == parts.text


def test_transcript_joins_segments_in_order():
    transcript = Transcript()
    for segment, text in ((0, "a"), (0, "a b"), (1, ""), (2, "c"), (2, "c d")):
        reply = {**outputs(0, 0, False), "SEGMENT": np.array([[segment]]), "TEXT": texts([text])}
        transcript.add(parse_reply("s", reply.get))
    assert transcript.text == "a b c d"


def test_reply_is_parsed_into_python_values():
    result = parse_reply("s", outputs(0, 1600, True).get)
    assert result.new_words == (Word("wörd0", 0, 50, 1.0), Word("λέξη1", 50, 100, 0.875))
    assert result.alternatives == ()
    assert (result.segment, result.text, result.is_final) == (3, "wörd0 λέξη1", True)
    assert (result.new_tokens, result.new_timestamps) == ((0, 1), (0, 2))
    assert result.audio_processed_s == pytest.approx(0.1)
    assert {type(value) for value in (result.segment, *result.new_tokens, *result.new_timestamps)} == {int}
    assert type(result.is_final) is bool


def test_alternatives_are_parsed_in_their_order():
    result = parse_reply("s", outputs(0, 800, True, n_best=2).get)
    assert result.alternatives == (
        Alternative("wörd0 (0)", -0.5, (Word("wörd0", 0, 80, 0.0),)),
        Alternative("wörd0 (1)", -1.5, (Word("wörd0", 0, 80, 0.25),)),
    )
    assert {type(alternative.score) for alternative in result.alternatives} == {float}


def test_a_server_without_scores_is_understood():
    reply = {name: values for name, values in outputs(0, 1600, True, n_best=2).items() if name not in SCORES}
    result = parse_reply("s", reply.get)
    assert result.new_words == (Word("wörd0", 0, 50), Word("λέξη1", 50, 100))
    assert [word.confidence for word in result.new_words] == [None, None]
    assert result.alternatives == ()


def test_transcript_keeps_the_alternatives_of_the_final_result():
    transcript = Transcript()
    for segment, is_final in ((0, True), (1, False)):
        reply = {**outputs(0, 800, is_final, n_best=2), "SEGMENT": np.array([[segment]])}
        transcript.add(parse_reply("s", reply.get))
    assert [alternative.score for alternative in transcript.alternatives] == [-0.5, -1.5]


@pytest.mark.parametrize("name", [name for name in outputs(0, 0, True) if name not in SCORES])
def test_missing_output_is_named(name):
    reply = outputs(0, 1600, True)
    del reply[name]
    with pytest.raises(ProtocolError, match=f"stream 7: .*{name}"):
        parse_reply(7, reply.get)


@pytest.mark.parametrize(
    "name, values",
    [
        ("TEXT", np.zeros((1, 0), np.object_)),
        ("TEXT", np.array([[b"\xff"]], np.object_)),
        ("TEXT", np.array([[1]])),
        ("SEGMENT", np.array([[1, 2]])),
        ("WORD_END_MS", np.array([[1]])),
        ("TIMESTAMPS", np.array([[1]])),
        ("WORD_CONFIDENCE", np.array([[0.5]], np.float32)),
        ("ALTERNATIVES", texts(["a"])),
        ("ALTERNATIVE_SCORES", np.array([[-1.0]], np.float32)),
        ("ALTERNATIVE_WORDS", texts(["[]"])),
    ],
)
def test_malformed_output_is_a_protocol_error(name, values):
    with pytest.raises(ProtocolError, match=r"stream 's': .*cannot be read"):
        parse_reply("s", {**outputs(0, 1600, True), name: values}.get)


@pytest.mark.parametrize(
    "message, kind",
    [
        ("in ensemble 'asr', stream 's' refused: all 4 stream slots are taken; try again later", ServerFullError),
        ("UNAVAILABLE: no room", ServerFullError),
        ("boosted phrases: 9 need memory; accepted: none while other streams hold theirs; send fewer", ServerFullError),
        ("in ensemble 'asr', stream 's' is not open: it was expired", StreamNotOpenError),
        ("inference request for sequence s must specify the START flag on the first request", StreamNotOpenError),
        ("stream 's': 1 of 2 samples are not finite", StreamError),
        ("stream 's': boosted phrases: phrase 1 ('it is not open') has boost 900.0", StreamError),
        ("""stream 's': phrase 1 ("it's UNAVAILABLE") and phrase 2 ('\\'UNAVAILABLE"') are refused""", StreamError),
        ("stream 's': the server's slots are taken, it isn't UNAVAILABLE", ServerFullError),
    ],
)
def test_refusals_carry_the_servers_message_and_the_stream(message, kind):
    error = refusal("s", message)
    assert type(error) is kind
    assert error.stream_id == "s"
    assert error.message == message.removeprefix("in ensemble 'asr', ")
    assert str(error).count("stream 's'") == 1
    assert error.message in str(error)


def test_refusal_is_one_line():
    assert "\n" not in str(refusal("s", "bad\n  thing"))
