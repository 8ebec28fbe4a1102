"""The whole way from samples to words: NeMo's, whatever the sizes of requests and the other streams in the batch."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import AudioRequest, StreamError, StreamingRecognizer
from penstock.encoder.encoder import StreamingEncoder
from penstock.errors import StreamErrorKind
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.nemo.importer import import_nemo
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock_common.options import DECODERS, WFST
from tests.helpers.golden import SIGNALS, golden_case, golden_cases, golden_samples, golden_utterances
from tests.helpers.nemo_files import write_ctc_nemo
from tests.helpers.random_models import random_checkpoint, random_encoder
from tests.helpers.recognition import NO_SAMPLES, Transcription, recognize_alone, recognize_together
from tests.helpers.reference.encoder import EncoderReference
from tests.helpers.reference.greedy import GreedyReference
from tests.helpers.reference.log_mel import log_mel_reference
from tests.helpers.streaming import cut, encode_streams, extract, make_extractor, mel_chunks, real_frames

CASES = [(case.name, context) for case in golden_cases() for context in case.contexts]
AN4_CONTEXTS = [(70, 6), (70, 0), *(pytest.param(each, marks=pytest.mark.nightly) for each in ((70, 13), (70, 1)))]


def golden_signals() -> list[np.ndarray]:
    return [golden_samples(signal).numpy() for signal in SIGNALS]


def assert_wellformed(recognized: Transcription, samples: int) -> None:
    """Checks rules for the results of every stream."""
    processed = [result.audio_processed_s for result in recognized.results]
    assert processed == sorted(processed)
    assert processed[-1] == pytest.approx(samples / 16000)
    assert [result.is_final for result in recognized.results] == [False] * (len(recognized.results) - 1) + [True]
    assert {result.segment for result in recognized.results} == {0}
    texts = [result.text for result in recognized.results]
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
    assert [word.text for word in recognized.words] == recognized.text.split()
    assert [token.timestamp for token in recognized.tokens] == sorted(token.timestamp for token in recognized.tokens)


@pytest.fixture(scope="module")
def recognizer(golden_bundle) -> StreamingRecognizer:
    """Chunks of 160 ms; 4 streams at once, none of them open."""
    return StreamingRecognizer(golden_bundle("rnnt_hybrid").directory, (6, 1), max_streams=4)


@pytest.mark.parametrize(("name", "context"), CASES)
def test_golden_tokens_from_many_streams_in_random_requests(golden_bundle, name, context):
    case, checkpoint = golden_case(name), golden_bundle(name)
    recognizer = StreamingRecognizer(checkpoint.directory, context, max_streams=5)
    names = (*SIGNALS, "short", "short")
    signals = [golden_samples(signal).numpy() for signal in names]
    recognized = recognize_together(recognizer, signals, random.Random(context[1]))
    for signal, samples, one in zip(names, signals, recognized, strict=True):
        golden = case.greedy(context, signal)
        assert [token.id for token in one.tokens] == golden.tokens
        assert [token.timestamp for token in one.tokens] == golden.timestamps
        assert not golden.durations or [token.duration for token in one.tokens] == golden.durations
        assert [token.score for token in one.tokens] == pytest.approx(golden.log_probabilities, abs=2e-3)
        assert one.text == Tokenizer(checkpoint.tokenizer_path).decode(golden.tokens).rstrip(" ")
        assert_wellformed(one, len(samples))
    assert recognizer.table.live_streams == 0


@pytest.mark.parametrize("context", AN4_CONTEXTS)
def test_golden_words_of_real_speech(bundled_model, context):
    utterances = golden_utterances()
    signals = [read_audio(utterance.path, 16000) for utterance in utterances]
    recognizer = StreamingRecognizer(bundled_model, context, max_streams=len(signals))
    recognized = recognize_together(recognizer, signals, random.Random(context[1]), most=16000)
    for utterance, samples, one in zip(utterances, signals, recognized, strict=True):
        golden = utterance.greedy(context)
        assert [token.id for token in one.tokens] == golden.tokens
        assert [token.timestamp for token in one.tokens] == golden.timestamps
        assert one.text == golden.text
        assert_wellformed(one, len(samples))


@pytest.mark.parametrize("context", [(70, 6), (70, 0)])
def test_golden_encoder_output_of_real_speech(bundled_model, context):
    """From samples, through both stages, the last of them float32 on float16 weights."""
    checkpoint, utterance = Checkpoint(bundled_model), golden_utterances()[0]
    extractor = make_extractor(checkpoint, AttentionContext(*context))
    replies = extract(extractor, [0], [read_audio(utterance.path, 16000)], [True], [True])
    mel = real_frames(replies, extractor.geometry.virtual_mel_frames)
    encoder = StreamingEncoder(checkpoint, AttentionContext(*context), slots=1)
    found = encode_streams(encoder, {0: mel_chunks(mel, encoder.config, encoder.context)})[0]
    torch.testing.assert_close(found, utterance.encoded(context), atol=1e-4, rtol=0)


def by_reference(checkpoint: Checkpoint, context: AttentionContext, samples: np.ndarray) -> list[tuple[int, int, int]]:
    """Tokens of a whole signal by the plain front end, encoder and search."""
    config, tensors = checkpoint.config, checkpoint.tensors()
    window, filterbank = tensors["features.window"], tensors["features.mel_filterbank"]
    mel = log_mel_reference(config.features, window, filterbank, torch.from_numpy(samples)).mel.float()
    encoded = EncoderReference(config.encoder, tensors).encode(mel, context)
    return [label[:3] for label in GreedyReference(config.transducer, tensors).decode(encoded)]


@pytest.mark.parametrize(
    ("seed", "durations"),
    [
        (1, (0, 1, 2, 3)),
        (3, ()),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((0, ()), (2, (0, 2, 4)))),
    ],
)
def test_random_models_from_end_to_end(tmp_path, seed, durations):
    checkpoint = random_checkpoint(tmp_path, seed, random_encoder(seed), durations, blank_rate=0.8)
    chance = random.Random(seed)
    signals = [samples[chance.randint(0, 3000) :] for samples in golden_signals()]
    for context in checkpoint.config.encoder.contexts[seed % 2 :: 2]:
        recognizer = StreamingRecognizer(checkpoint.directory, context)
        for samples, recognized in zip(signals, recognize_together(recognizer, signals, chance), strict=True):
            assert [token[:3] for token in recognized.tokens] == by_reference(checkpoint, context, samples)


def ctc_outcomes(model: Path, decoder: str, size: int) -> list[tuple]:
    """Tokens, words and text of the golden signals, in requests of `size` samples."""
    recognizer, found = StreamingRecognizer(model, max_streams=2), []
    for samples in golden_signals():
        with recognizer.open_stream(options={"decoder": decoder}) as stream:
            parts = cut(len(samples), size)
            found.append(Transcription([*(stream.push(samples[part]) for part in parts), stream.finish()]).outcome)
    return found


@pytest.mark.parametrize("decoder", ["ctc", "ctc_beam"])
def test_a_ctc_model_recognizes_what_the_same_head_of_a_hybrid_does(golden_bundle, tmp_path, decoder):
    import_nemo(write_ctc_nemo(tmp_path / "ctc.nemo"), tmp_path / "ctc")
    hybrid = ctc_outcomes(golden_bundle("rnnt_hybrid").directory, decoder, 5000)
    assert ctc_outcomes(tmp_path / "ctc", decoder, 5000) == hybrid
    assert ctc_outcomes(tmp_path / "ctc", decoder, 100_000) == hybrid
    assert any(tokens for tokens, *_ in hybrid)
    with StreamingRecognizer(tmp_path / "ctc").open_stream() as stream:
        stream.push(golden_signals()[0])
        assert stream.finish().is_final


@pytest.mark.parametrize("samples", [0, 1, 159])
def test_a_stream_without_a_frame_has_no_words(recognizer, samples):
    recognized = recognize_alone(recognizer, golden_samples("short").numpy()[:samples])
    assert recognized.outcome == ([], [], "")
    assert_wellformed(recognized, samples)


def test_a_live_stream_started_again_is_a_new_one(recognizer):
    samples = golden_samples("medium").numpy()
    expected = recognize_alone(recognizer, samples)
    recognizer.process([AudioRequest("again", golden_samples("long").numpy()[:9999], is_start=True)])
    results = recognizer.process([AudioRequest("again", samples, is_start=True)])
    results += recognizer.process([AudioRequest("again", NO_SAMPLES, is_end=True)])
    assert Transcription(results).outcome == expected.outcome
    assert recognizer.table.live_streams == 0


def test_a_silent_stream_is_expired_and_one_that_waits_for_a_step_is_not(golden_bundle, monkeypatch):
    recognizer = StreamingRecognizer(golden_bundle("rnnt_hybrid").directory, max_streams=2, idle_limit_s=30.0)
    now_s, samples = [0.0], golden_samples("short").numpy()
    monkeypatch.setattr(recognizer.table, "_clock", lambda: now_s[0])
    streams = [recognizer.open_stream(name) for name in ("one", "silent")]
    for stream in streams:
        stream.push(samples[:9999])
    for stage, step in ((recognizer._features, "_process"), (recognizer._encoder, "process_tickets")):
        compute = getattr(stage, step)

        def slow(*args, compute=compute, **options):
            now_s[0] += 40.0
            return compute(*args, **options)

        monkeypatch.setattr(stage, step, slow)
    streams[0].push(samples)
    assert now_s == [80.0]
    streams[0].push(samples)
    now_s[0] += 31.0
    assert recognizer.open_stream("next").push(NO_SAMPLES).text == ""
    with pytest.raises(StreamError, match=r"'silent' is not open: it expired after 30 s"):
        streams[1].push(NO_SAMPLES)
    for stream in streams:
        stream.close()


def test_a_stream_gathers_its_words_and_tokens(recognizer):
    samples = golden_samples("medium").numpy()
    expected = recognize_alone(recognizer, samples)
    stream = recognizer.open_stream()
    for start in range(0, len(samples), 5000):
        stream.push(samples[start : start + 5000].tolist())
    stream.finish()
    words = [word[:3] for word in stream.words]
    assert ([token[:3] for token in stream.tokens], words, expected.text) == expected.outcome


def test_a_stream_closes_itself(recognizer):
    with recognizer.open_stream() as stream:
        assert recognizer.table.live_streams == 0  # its slot is taken with its first request
        stream.push(NO_SAMPLES)
        assert recognizer.table.live_streams == 1
    assert recognizer.table.live_streams == 0
    stream.close()
    with pytest.raises(StreamError, match="it has ended") as caught:
        stream.push(NO_SAMPLES)
    assert caught.value.kind is StreamErrorKind.NOT_FOUND


@pytest.mark.parametrize("method", ["push", "finish"])
def test_a_stream_whose_start_was_rejected_may_start_yet(recognizer, method):
    stream = recognizer.open_stream()
    with pytest.raises(StreamError, match="not finite"):
        getattr(stream, method)(np.full(10, np.nan, np.float32))
    stream.push(NO_SAMPLES)
    stream.close()
    assert recognizer.table.live_streams == 0


def test_a_start_without_room_for_its_phrases_leaves_its_slot_to_others(golden_bundle):
    """The stream has its slot already when the decoder looks at the memory of the lists."""
    bundle, streams = golden_bundle("rnnt_hybrid").directory, 32
    recognizer = StreamingRecognizer(bundle, max_streams=streams, decoding=DecodingConfig(phrase_memory_mib=16))

    def start(name: str, **options: object):
        (answer,) = recognizer.process([AudioRequest(name, NO_SAMPLES, is_start=True, options=options)])
        return answer

    def large_list(number: int) -> str:
        chance = random.Random(number)
        return json.dumps(["".join(chance.choices("adefghilmnoprstuvwy", k=60)) for _ in range(330)])

    held = 0
    while not isinstance(answer := start(f"boosted-{held}", boosted_phrases=large_list(held)), StreamError):
        held += 1
    assert answer.kind is StreamErrorKind.UNAVAILABLE
    assert "while other streams hold theirs" in str(answer)
    assert 0 < held < streams - 1
    others = [start(f"plain-{i}") for i in range(streams - held + 1)]
    assert [isinstance(other, StreamError) for other in others] == [False] * (streams - held) + [True]
    assert "stream slots are taken" in str(others[-1])


@pytest.mark.parametrize(("name", "streams"), [("rnnt_hybrid", 64), ("tdt_hybrid", 1)])
def test_warming_up_changes_no_result(golden_bundle, name, streams):
    """Every stage runs its largest batch when it starts, which changes no later stream."""
    decoders = [decoder for decoder in DECODERS if decoder != WFST]  # which needs a graph
    plain, warm = (StreamingRecognizer(golden_bundle(name).directory, max_streams=4) for _ in range(2))
    for stage in (warm._features, warm._encoder, warm._decoder):
        stage.warm_up(streams)
    assert warm.table.live_streams == 0
    for samples, decoder in itertools.product(golden_signals(), decoders):
        recognized = []
        for recognizer in (plain, warm):
            with recognizer.open_stream(options={"decoder": decoder}) as stream:
                recognized.append(Transcription([stream.push(samples), stream.finish()]))
        assert recognized[0].results == recognized[1].results
    assert warm._decoder.truncation == plain._decoder.truncation
