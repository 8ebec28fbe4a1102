import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from client.tests.helpers.fake_sounddevice import FakeSounddevice
from client.tests.helpers.fakes import RejectionError, confidence, outputs, parse_reply, text_of
from penstock_client.cli import main as main_module
from penstock_client.cli.main import main

GRPC_ONLY = pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
TEXT = text_of(38_400)


def test_text_goes_to_output_and_speed_to_errors(run, audio_file):
    status, out, err = run(audio_file)
    assert (status, out) == (0, TEXT + "\n")
    speed = r"in \d+\.\d\d s, \d+\.\d x real time\n"
    assert re.fullmatch(re.escape(f"{audio_file}: 2.40 s of audio ") + speed, err)


@GRPC_ONLY
def test_the_latency_of_audio_at_the_pace_of_speech_goes_to_errors(run, audio_file):
    _, _, err = run(audio_file, "--simulate-realtime")
    assert re.fullmatch(re.escape(f"{audio_file}: 2.40 s of audio, final text ") + r"\d+ ms after its end\n", err)


@GRPC_ONLY
def test_several_files_are_named(run, audio_file, tmp_path):
    other = tmp_path / "other.flac"
    soundfile.write(other, np.zeros(800), 16_000)
    status, out, _ = run(audio_file, other)
    assert (status, out) == (0, f"{audio_file}: {TEXT}\n{other}: wörd0\n")


def test_json_is_one_object_per_file(run, audio_file):
    status, out, err = run(audio_file, audio_file, "--json")
    documents = [json.loads(line) for line in out.splitlines()]
    assert (status, err, len(documents)) == (0, "", 2)
    result = parse_reply("s", outputs(0, 38_400, True).get)[0]
    for document in documents:
        assert document.pop("latency_ms") >= 0
        assert document == {
            "audio": str(audio_file),
            "text": TEXT,
            "language": "en-US",
            "tokens": list(result.new_tokens),
            "timestamps": list(result.new_timestamps),
            "words": [
                {"word": w.text, "start_ms": w.start_ms, "end_ms": w.end_ms, "confidence": confidence(i)}
                for i, w in enumerate(result.new_words)
            ],
            "alternatives": [],
            "segments": [
                {"text": TEXT, "language": "en-US", "words": 48, "tokens": len(result.new_tokens), "alternatives": []}
            ],
            "audio_s": 2.4,
            "remarks": [],
        }


@GRPC_ONLY
def test_word_times_follow_the_text(run, audio_file):
    _, out, _ = run(audio_file, "--word-times")
    lines = out.splitlines()
    assert lines[0] == TEXT
    assert [line.split() for line in lines[1:4]] == [
        ["0.00", "0.05", "wörd0"],
        ["0.05", "0.10", "λέξη1"],
        ["0.10", "0.15", "語2"],
    ]
    assert len(lines) == 1 + 48


@GRPC_ONLY
def test_interim_lines_grow_where_output_is_no_terminal(run, audio_file):
    status, out, _ = run(audio_file, "--interim", "--request-ms", "200")
    *interim, final = out.splitlines()
    assert (status, final) == (0, TEXT)
    assert 0 < len(interim) == len(set(interim)) <= 11  # several results may arrive at once
    assert all(TEXT.startswith(line) for line in interim)
    assert interim == sorted(interim, key=len)
    assert "\x1b" not in out


def test_failed_files_are_reported_and_the_others_transcribed(run, audio_file, tmp_path):
    status, out, err = run(tmp_path / "missing.wav", audio_file, "--json")
    assert status == 1
    assert [json.loads(line)["audio"] for line in out.splitlines()] == [str(audio_file)]
    assert err == f"penstock-client: error: AUDIO_INVALID: {tmp_path}/missing.wav: no such file\n"


def test_a_rejection_fails_its_file_only(run, audio_file, recognizer):
    def reject_first(request):
        if len(recognizer.requests) == 1:
            raise RejectionError("in ensemble 'asr', STREAM_LIMIT: all 4 stream slots are taken", 503)

    recognizer.before_answer = reject_first
    status, out, err = run(audio_file, audio_file)
    assert (status, out) == (1, f"{audio_file}: {TEXT}\n")
    message = rf"STREAM_LIMIT: {audio_file}: stream \d+: all 4 stream slots are taken" "\n"
    assert re.match(f"penstock-client: error: {message}", err)


def test_absent_server_is_one_line(run, wire, url, audio_file):
    wire.close()
    status, out, err = run(audio_file)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"penstock-client: error: SERVER_UNREACHABLE: {audio_file}: cannot reach a server at {url}: ")


def test_options_reach_the_server(run, audio_file, recognizer, tmp_path):
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("\ufeffnew york\n\n  λέξη : 3 \n", encoding="utf-8")
    beam = ["--decoder", "aes:beam=3,lm_weight=0", "--n-best", 2]
    beam += ["--ilm-alpha", 0.6, "--ilm-beta", 0.5]
    boosts = ["--boost-phrase", "a b:-1.5", "--boost-phrase", "c", "--boosted-phrases", phrases, "--boost", 4]
    assert run(audio_file, audio_file, *beam, *boosts)[0] == 0
    (first, second) = (request.parameters for request in recognizer.requests if request.is_start)
    assert json.loads(first.pop("boosted_phrases")) == [["a b", -1.5], "c", "new york", ["λέξη", 3.0]]
    weights = {"lm_weight": 0.0, "ilm_alpha": 0.6, "ilm_beta": 0.5}
    assert first == {"decoder": "aes", "beam_size": 3, "n_best": 2, "boost": 4.0} | weights
    assert second.keys() == {"boosted_phrases", *first}


@GRPC_ONLY
def test_without_options_requests_have_no_parameters(run, audio_file, recognizer):
    run(audio_file)
    assert {json.dumps(request.parameters) for request in recognizer.requests} == {"{}"}


@GRPC_ONLY
def test_alternatives_follow_the_text(run, audio_file):
    _, out, _ = run(audio_file, "--decoder", "alsd", "--n-best", "2")
    assert out == f"{TEXT}\n    -0.50  {TEXT} (0)\n    -1.50  {TEXT} (1)\n"


@GRPC_ONLY
def test_aliases_of_flags(run, audio_file, recognizer):
    known = ["--decoder", "alsd", "--max-alternatives", "1", "--boosted-words", "a", "--boosted-words", "b:2"]
    assert run(audio_file, *known, "--boost", "3")[1].count("(0)") == 1
    assert recognizer.requests[0].parameters == {
        "decoder": "alsd",
        "n_best": 1,
        "boosted_phrases": '["a", ["b", 2.0]]',
        "boost": 3.0,
    }


@GRPC_ONLY
@pytest.mark.parametrize("kind, first", [("srt", "1\n00:00:00,000 --> "), ("vtt", "WEBVTT\n\n00:00:00.000 --> ")])
def test_subtitles_are_all_that_is_written(run, audio_file, kind, first):
    status, out, err = run(audio_file, "--format", kind)
    assert (status, err) == (0, "")
    assert out.startswith(first)
    lines = [line for line in out.splitlines() if "-->" not in line and not line.isdigit() and line != "WEBVTT"]
    assert "".join(lines).replace(" ", "") == TEXT.replace(" ", "")  # beside Han there is no blank


@pytest.mark.parametrize(
    ("asked", "known", "language"), [(None, "de", "de"), (None, "de en", ""), ("fr", "de", "fr"), (None, "", "")]
)
def test_subtitles_know_the_only_language_of_a_model(asked, known, language):
    server = SimpleNamespace(server_info=lambda: SimpleNamespace(detected_languages=known.split()))
    assert main_module._language(server, SimpleNamespace(language=asked)) == language


@GRPC_ONLY
def test_the_size_of_requests_of_files_of_real_time_and_as_asked(run, audio_file, recognizer):
    run(audio_file)
    assert [request.samples.size for request in recognizer.requests] == [16_000, 16_000, 6400]
    recognizer.requests.clear()
    run(audio_file, "--simulate-realtime")
    assert [request.samples.size for request in recognizer.requests] == [1600] * 24
    recognizer.requests.clear()
    run(audio_file, "--request-ms", "700")
    assert [request.samples.size for request in recognizer.requests] == [11_200, 11_200, 11_200, 4800]


def test_a_file_is_split_into_segments_of_equal_length(run, audio_file, recognizer, samples):
    status, out, err = run(audio_file, "--finalize-every", "1", "--json")
    document = json.loads(out)
    sizes = (16_000, 16_000, 6_400)
    assert (status, err) == (0, "")
    assert [segment["text"] for segment in document["segments"]] == [text_of(size) for size in sizes]
    assert document["text"] == " ".join(text_of(size) for size in sizes)
    assert document["latency_ms"] >= 0
    ended = [request for request in recognizer.requests if request.parameters.get("finalize")]
    assert len(ended) == 2 and recognizer.requests[-1].is_end
    assert np.array_equal(np.concatenate([request.samples for request in recognizer.requests]), samples)


@GRPC_ONLY
def test_segments_of_the_microphone(run, monkeypatch, samples):
    monkeypatch.setitem(sys.modules, "sounddevice", FakeSounddevice(samples))
    document = json.loads(run("--microphone", "--finalize-every", "2", "--json")[1])
    assert [segment["text"] for segment in document["segments"]] == [text_of(32_000), text_of(6_400)]


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ([], "one or more AUDIO files, or --microphone"),
        (["--info", "a.wav"], "--info prints what the server offers, and takes no audio"),
        (["a.wav", "--finalize-every", "0"], "--finalize-every: '0' is not a number from 0.1 to 86400"),
        (["-", "--sample-rate", "8000"], "they require --raw-format"),
        (["-", "--raw-format", "s16le"], "--raw-format requires --sample-rate"),
        (["-", "--raw-format", "s16le", "--sample-rate", "0"], "sample rate is 0, expected an integer from 1"),
        (["--microphone", "--raw-format", "s16le"], "--raw-format is for files and pipes"),
        (["--microphone", "--channel", "left"], "the microphone has one channel"),
        (["-", "--channel", "both"], "accepted: mix, each, left, right, or the number of a channel from 1"),
        (["a.wav", "--request-ms", "0"], "--request-ms: '0' is not a number from 1 to 30000"),
        (["a.wav", "--url", "http://localhost:8000"], "host:port"),
        (["a.wav", "--json", "--format", "srt"], "not allowed with"),
        (["a.wav", "--format", "srt", "--interim"], "--interim requires --format text or json, not srt"),
        (["a.wav", "b.wav", "--format", "vtt"], "--format vtt writes one file of subtitles"),
        (["a.wav", "--header", "Bearer x"], "expected NAME:VALUE"),
        (["a.wav", "--connect-retry", "-1"], "--connect-retry: '-1' is not a number from 0"),
        (["a.wav", "--decoder", "beam"], "--decoder is 'beam'; accepted: greedy, alsd"),
        (["a.wav", "--decoder", "beam:beam=2"], "'beam' is not known; known: greedy, alsd"),
        (["a.wav", "--decoder", "alsd:lm=a"], "'lm' is not an option of alsd; options: beam_size, n_best, lm_weight"),
        (["a.wav", "--decoder", "alsd:beam=33"], "'alsd:beam=33': beam is '33'; accepted: integers from 1 to 32"),
        (["a.wav", "--decoder", "alsd:beam=2", "--beam-size", "3"], "'beam_size' is also a flag; accepted: one of"),
        (["a.wav", "--boost", "2"], "--boost requires"),
        (["a.wav", "--boost-phrase", "a:2,5"], "--boost-phrase: '2,5' in 'a:2,5' is not a number"),
        (["a.wav", "--boost-phrase", " :2"], "' :2' has no words"),
        (["a.wav", "--boost-phrase", "...:2"], "'...:2' has no words"),
        (["a.wav", "--boost-phrase", "four:30"], "'30' in 'four:30' is too large for a boost"),
        (["a.wav", "--boosted-phrases", "/missing.txt"], "/missing.txt: no such file or directory"),
        (["a.wav", "--boosted-phrases", sys.executable], "not a UTF-8 text file"),
    ],
)
def test_wrong_usage_is_rejected(capsys, arguments, reason):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    (error,) = capsys.readouterr().err.splitlines()
    assert exit_.value.code == 2
    assert error.startswith("penstock-client: error: ") and reason in error


@GRPC_ONLY
def test_the_url_is_read_from_the_environment(url, audio_file, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_URL", url)
    assert main([str(audio_file)]) == 0
    monkeypatch.setenv("PENSTOCK_URL", "nonsense")
    assert main([str(audio_file), "--url", url]) == 0
    assert capsys.readouterr().out == f"{TEXT}\n" * 2
    with pytest.raises(SystemExit):
        main([str(audio_file)])
    assert "url is 'nonsense'" in capsys.readouterr().err


def test_bad_lines_of_a_file_of_phrases_are_numbered(capsys, tmp_path):
    phrases = tmp_path / "phrases.txt"
    phrases.write_text("a\n\nb:\n")
    with pytest.raises(SystemExit):
        main(["a.wav", "--boosted-phrases", str(phrases)])
    assert f"{phrases}, line 3: '' in 'b:' is not a number" in capsys.readouterr().err
