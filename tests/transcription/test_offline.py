"""Whole recordings through an offline model: batches, options and bad input."""

import itertools

import numpy as np
import pytest
import soundfile

from penstock import OfflineRecognizer, StreamingRecognizer
from penstock.encoder.window.attention import Band
from penstock.encoder.window.encoder import WindowEncoder
from penstock.errors import SettingError, StreamError
from penstock.evaluation.errors import compare, total
from penstock.pipeline.options import windows
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.recognizer import as_floats
from penstock.transcription import offline
from penstock.transcription.files import FileTranscriber
from penstock_common.audio.tracks import EACH
from recipes.training.batches import read_recordings
from tests.helpers.decoding_graphs import write_word_loop
from tests.helpers.golden import AN4, golden_pcm
from tests.helpers.offline_models import BUNDLED, offline_bundle, random_offline_encoder
from tests.helpers.random_models import random_ctc_checkpoint
from tests.helpers.tensor_memory import TensorMemory

CASES = ("rnnt_hybrid", "tdt_hybrid")


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("offline")
    return {case: str(offline_bundle(folder, case).directory) for case in CASES}


@pytest.fixture(scope="module")
def recordings() -> list[np.ndarray]:
    """Some 0.01 to 6 s."""
    pcm = [golden_pcm(name).numpy() for name in ("medium", "short", "long")]
    parts = [pcm[2][start : start + size] for start, size in ((0, 160), (100, 161), (5000, 1279), (9000, 1281))]
    return [*pcm, *parts, np.concatenate([pcm[2], pcm[0], pcm[1]]), np.zeros(8000, np.float32)]


def outcome(result) -> tuple:
    """Everything but last bits of scores and confidences."""
    assert not isinstance(result, StreamError), result
    entries = [(each.text, [t[:3] for t in each.tokens], [w[:3] for w in each.words]) for each in result.entries]
    return result.is_final, result.audio_processed_s, entries


@pytest.mark.parametrize(
    ("case", "decoder"),
    [
        pytest.param(case, decoder, marks=[pytest.mark.nightly] * (number % 2))
        for number, (case, decoder) in enumerate(itertools.product(CASES, ("greedy", "aes", "ctc", "alsd", "ctc_beam")))
    ],
)
def test_a_recording_alone_and_in_any_batch(directories, recordings, case, decoder):
    options = {"decoder": decoder}
    together = OfflineRecognizer(directories[case]).transcribe(recordings, options)
    small = OfflineRecognizer(directories[case], max_batch=3, batch_audio_s=2.0)
    assert [outcome(one) for one in small.transcribe(recordings, options)] == [outcome(one) for one in together]
    assert [outcome(small.transcribe([one], options)[0]) for one in recordings] == [outcome(one) for one in together]
    assert sum(len(one.tokens) for one in together) > 5
    for samples, one in zip(recordings, together, strict=True):
        assert one.audio_processed_s == len(samples) / 16000
        assert [word.text for word in one.words] == one.text.split()
        assert all(word.end_ms <= 1000 * len(samples) / 16000 + 80 for word in one.words)


@pytest.mark.parametrize("silence_s", [0, 28])
@pytest.mark.parametrize(("decoder", "most_errors"), [("greedy", 6), ("ctc", 9)])
def test_the_bundled_model_recognizes_what_was_said(decoder, most_errors, silence_s):
    """34 words of speakers that it was not trained on, alone and after long silence."""
    said = read_recordings(AN4 / "manifest.jsonl")
    silence = np.zeros(16000 * silence_s, np.float32)
    recordings = [np.concatenate([silence, one.samples]) for one in said]
    found = OfflineRecognizer(BUNDLED).transcribe(recordings, {"decoder": decoder})
    errors = [compare(" ".join(one.words), result.text).words for one, result in zip(said, found, strict=True)]
    assert total(errors).edits <= most_errors, [result.text for result in found]


def test_a_decoding_graph(tmp_path, recordings, monkeypatch):
    checkpoint = random_ctc_checkpoint(tmp_path, 6, random_offline_encoder(6), blank_rate=0.02)
    words = ("a", "be", "bed", "bad", "dad", "bead")
    graph = write_word_loop(tmp_path / "words.safetensors", checkpoint.tokenizer_path, words)
    settings = {"wfst_max_active": 64, "wfst_beam": 20.0}
    decoding = DecodingConfig(graph=str(graph), **settings)
    recognizer, options = OfflineRecognizer(checkpoint.directory, decoding=decoding), {"decoder": "wfst", "n_best": 2}
    together = recognizer.transcribe(recordings[:3], options)
    assert {word.text for one in together for word in one.words} <= set(words)
    assert sum(len(one.words) for one in together) > 5
    assert all(one.alternatives[0].text == one.text and one.lattice for one in together)
    monkeypatch.setattr(windows, "DECODED_CHUNKS", 1)
    alone = [recognizer.transcribe([samples], options)[0] for samples in recordings[:3]]
    assert [outcome(one) for one in alone] == [outcome(one) for one in together]


def test_options_of_each_recording(directories, recordings):
    recognizer = OfflineRecognizer(directories["rnnt_hybrid"])
    options = [{"decoder": "alsd", "n_best": 3}, {}, {"boosted_phrases": ["seven"], "boost": 5.0}, {"decoder": "wfst"}]
    *good, bad = recognizer.transcribe(recordings[:4], options)
    assert len(good[0].alternatives) == 3
    assert good[0].alternatives[0].text == good[0].text
    assert not good[1].alternatives
    assert good[2].text
    assert str(bad).startswith("OPTION_INVALID: decoder 'wfst' is not offered")
    with pytest.raises(StreamError, match="OPTION_INVALID"):
        recognizer.check_options({"decoder": "wfst"})


def test_int16_is_the_same_audio(directories, recordings):
    recognizer = OfflineRecognizer(directories["rnnt_hybrid"])
    pcm = recordings[0]
    assert pcm.dtype == np.int16
    found, expected = recognizer.transcribe([pcm, pcm.astype(np.float32) / 32768])
    assert outcome(found) == outcome(expected)


BAD_AUDIO = (
    (np.zeros(0, np.float32), r"0 samples; accepted: at least 160 \(10 ms\)"),
    (np.zeros(159, np.float32), r"159 samples; accepted: at least 160"),
    (np.full(1600, np.nan, np.float32), r"1600 of 1600 samples are not finite"),
    (np.full(1600, 3.0, np.float32), r"beyond 2"),
    (np.float32(0.5), r"float32 \[\]; accepted"),
    (np.zeros((2, 1600), np.float32), r"float32 \[2, 1600\]; accepted: floats or int16 \[n\]"),
    (np.zeros(1600, np.int32), r"int32 \[1600\]; accepted: floats or int16 \[n\]"),
)


def test_bad_audio_is_named_and_the_others_go_on(directories, recordings):
    recognizer = OfflineRecognizer(directories["rnnt_hybrid"])
    good, *bad, last = recognizer.transcribe([recordings[0], *(samples for samples, _ in BAD_AUDIO), recordings[1]])
    for error, (_, match) in zip(bad, BAD_AUDIO, strict=True):
        with pytest.raises(StreamError, match=f"AUDIO_INVALID: .*{match}"):
            raise error
    assert [outcome(one) for one in (good, last)] == [
        outcome(recognizer.transcribe([recordings[i]])[0]) for i in (0, 1)
    ]


@pytest.mark.parametrize(
    ("attention", "own", "expected"),
    [
        (None, None, [None, Band(128, 128)]),  # above 10 min
        (None, Band(9, 9), [Band(9, 9), Band(9, 9)]),
        ("full", Band(9, 9), [None, None]),
        ("local=4,2", None, [Band(4, 2), Band(4, 2)]),
    ],
)
def test_attention_of_short_and_long_recordings(directories, recordings, monkeypatch, attention, own, expected):
    recognizer = OfflineRecognizer(directories["tdt_hybrid"], attention=attention)
    run, found = WindowEncoder.run, []

    def record(encoder, mels, bands):
        found.extend(bands)
        return run(encoder, mels, bands)

    monkeypatch.setattr(recognizer._encoder._encoder, "band", own)
    monkeypatch.setattr(WindowEncoder, "run", record)
    monkeypatch.setattr(windows, "FULL_ATTENTION_S", 2.0)
    recognizer.transcribe([recordings[0], recordings[2]])  # 1.4 and 3.2 s
    assert found == expected


def test_recordings_of_a_batch_are_encoded_together(directories, recordings, monkeypatch):
    """However many pieces of log-mel each has: 44, 1 and 22 s."""
    run, found = WindowEncoder.run, []

    def record(encoder, mels, bands):
        found.append(len(mels))
        return run(encoder, mels, bands)

    monkeypatch.setattr(WindowEncoder, "run", record)
    files = [np.tile(recordings[2], 14), recordings[1], np.tile(recordings[2], 7)]
    for audio_s, batches in ((120.0, [3]), (50.0, [2, 1]), (0.1, [1, 1, 1])):
        OfflineRecognizer(directories["rnnt_hybrid"], batch_audio_s=audio_s).transcribe(files)
        assert found == batches
        found.clear()


def test_files_are_read_until_they_fill_a_batch(directories, recordings, tmp_path):
    """One has more channels than there are streams; one is bad."""
    stereo = np.stack([recordings[2], recordings[2][::-1]], axis=1)
    files = {"stereo": stereo, "loud": np.full(16000, 3.0, np.float32)}
    files |= {name: recordings[number] for name, number in (("a", 0), ("b", 2), ("c", 1))}
    taken = []

    def paths():
        for number, (name, samples) in enumerate(files.items()):
            taken.append(name)
            soundfile.write(tmp_path / f"{name}.wav", samples, 16000, subtype="FLOAT" if name == "loud" else None)
            yield number, tmp_path / f"{name}.wav"

    recognizer = OfflineRecognizer(directories["rnnt_hybrid"], max_batch=1)
    audio_s = []
    done = FileTranscriber(recognizer, 0, channel=EACH).transcribe_numbered(paths(), audio_s.append)
    found = [next(done)]
    assert taken == ["stereo"]
    found += done
    transcripts = {list(files)[number]: each for number, each in found}
    (failed,) = transcripts.pop("loud")
    assert f"AUDIO_INVALID: {tmp_path / 'loud.wav'}: 16000 of 16000 samples are not finite" in failed.error
    expected = recognizer.transcribe([stereo[:, 0], stereo[:, 1], *(files[name] for name in "abc")])
    tokens = [[token[:2] for token in each.tokens] for each in expected]
    assert [[token[:2] for token in one.tokens] for name in transcripts for one in transcripts[name]] == tokens
    assert sum(audio_s) == pytest.approx(sum(one.audio_processed_s for one in expected))
    wide = FileTranscriber(OfflineRecognizer(directories["rnnt_hybrid"], batch_audio_s=3.0), 0)
    taken.clear()
    next(wide.transcribe_numbered(paths()))
    assert taken == ["stereo"]  # 3.2 s


def peak_bytes(recognizer: OfflineRecognizer, seconds: int) -> int:
    noise = np.random.default_rng(0).normal(0.0, 0.1, 16_000 * seconds).astype(np.float32)
    with TensorMemory() as memory:
        (result,) = recognizer.transcribe([noise], {"decoder": "ctc"})
    assert result.audio_processed_s == seconds
    return memory.peak_bytes


def test_memory_for_each_second_is_log_mel_and_frames_or_four_times_the_frames(directories):
    """docs/models.md"""
    recognizer = OfflineRecognizer(directories["tdt_hybrid"], attention="local=64,64", precision="float32")
    short, long = (peak_bytes(recognizer, seconds) for seconds in (600, 1200))
    log_mel = recognizer.config.features.mel_bins * 4 * 100
    frames = recognizer.config.encoder.d_model * 4 * 12.5
    assert 0.9 < (long - short) / 600 / max(log_mel + frames, 4 * frames) < 1.1


def test_no_recordings(directories):
    assert OfflineRecognizer(directories["rnnt_hybrid"]).transcribe([]) == []


@pytest.mark.parametrize("wrong", [{"max_batch": 0}, {"batch_audio_s": 0.0}, {"attention": "some"}], ids=str)
def test_wrong_settings_are_named(directories, wrong):
    with pytest.raises(SettingError, match=f"{next(iter(wrong))}.*accepted: "):
        OfflineRecognizer(directories["rnnt_hybrid"], **wrong)


def test_each_recognizer_names_the_models_that_it_accepts(directories, bundled_model):
    with pytest.raises(SettingError, match="an4-rnnt-hybrid is a streaming model; accepted: an offline model"):
        OfflineRecognizer(bundled_model)
    with pytest.raises(SettingError, match="an offline model has no contexts; accepted: none"):
        StreamingRecognizer(directories["rnnt_hybrid"], "70,6")


@pytest.mark.parametrize(
    ("method", "calls"),
    [("_encoder.process_tickets", 3), ("_encoder.process_tickets", 4), ("_decoder.process_tickets", 1)],
)
def test_after_an_interruption_all_slots_are_free(directories, recordings, monkeypatch, method, calls):
    recognizer = OfflineRecognizer(directories["rnnt_hybrid"], max_batch=3)
    speech = np.concatenate(recordings[:3])
    stage, name = getattr(recognizer, method.partition(".")[0]), method.partition(".")[2]
    whole, left = getattr(stage, name), itertools.count(1)

    def interrupted(*args, **kwargs):
        answers = whole(*args, **kwargs)
        if next(left) == calls:
            raise KeyboardInterrupt
        return answers

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stage, name, interrupted)
        recognizer.transcribe([speech, np.concatenate([speech] * 10), speech])
    again = recognizer.transcribe([speech, speech])
    assert [outcome(each) for each in again] == [outcome(again[0])] * 2


def test_a_live_window_keeps_all_words_of_a_long_recording(directories, recordings, monkeypatch):
    speech = np.concatenate([as_floats(each) for each in recordings[:3]] * 2)
    monkeypatch.setattr(offline, "BLOCK_SAMPLES", 50_000)
    (found,) = OfflineRecognizer(directories["rnnt_hybrid"]).transcribe([speech], {"window": "live"})
    with StreamingRecognizer(directories["rnnt_hybrid"]).open_stream(options={"window": "live"}) as stream:
        expected = stream.finish(speech)
        assert outcome(found)[2] == outcome(expected)[2]
        assert found.words


def test_blocks_are_not_longer_than_a_request(directories, recordings, monkeypatch):
    speech = np.concatenate([as_floats(each) for each in recordings[:3]] * 7)
    assert len(speech) > 30 * 16_000
    (expected,) = OfflineRecognizer(directories["rnnt_hybrid"]).transcribe([speech])
    monkeypatch.setattr(offline, "BLOCK_SAMPLES", 1 << 30)
    (found,) = OfflineRecognizer(directories["rnnt_hybrid"]).transcribe([speech])
    assert outcome(found) == outcome(expected)
