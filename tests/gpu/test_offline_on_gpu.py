"""Files of an offline model on a CUDA device: the tokens of the CPU, in a server's stages and in the library."""

import numpy as np
import pytest

from penstock import OfflineRecognizer
from penstock.model.bundle import Checkpoint
from penstock.pipeline.offline import encoder as window_encoder
from penstock.pipeline.offline import jobs as window_jobs
from tests.helpers.golden import golden_samples
from tests.helpers.offline_models import offline_bundle
from tests.helpers.window_server import RATE_HZ, Upload, WindowServer

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


@pytest.fixture(params=["rnnt_hybrid", "tdt_hybrid"])
def checkpoint(request, tmp_path) -> Checkpoint:
    return offline_bundle(tmp_path, request.param)


@pytest.fixture
def files() -> dict[str, Upload]:
    """Files with all decoders and windows, of one to several pieces of log-mel and parts of encoder frames."""
    speech = np.concatenate([golden_samples(name).numpy() for name in ("medium", "short", "long")] * 10)
    return {
        "long": Upload(speech),
        "local": Upload(speech[5000 : 5000 + 32 * RATE_HZ], {"window": "long", "decoder": "alsd"}),
        "ctc": Upload(speech[: 7 * RATE_HZ], {"decoder": "ctc"}),
        **{f"short {size}": Upload(speech[7000 : 7000 + size]) for size in (160, 22_000, 51_200)},
    }


def segments(checkpoint: Checkpoint, files: dict[str, Upload], device: str) -> dict[str, list[tuple]]:
    """Text, tokens and words of each file; all of them are streams of one server, a part of each in every batch."""
    done = WindowServer(checkpoint, device=device).transcribe(files)
    assert not any(one.errors for one in done.values())
    return {name: done[name].segments for name in files}


@pytest.mark.parametrize("max_parts", [window_encoder.MAX_CALL_PARTS, 1])
def test_files_beside_each_other_have_the_words_of_the_cpu(checkpoint, files, max_parts, monkeypatch):
    monkeypatch.setattr(window_encoder, "MAX_CALL_PARTS", max_parts)
    found = segments(checkpoint, files, DEVICE)
    assert found == segments(checkpoint, files, "cpu")
    assert sum(len(tokens) for file in found.values() for _, tokens, _ in file) > 20


def test_the_library_has_the_words_of_the_cpu(checkpoint, files):
    def results(device: str) -> list[tuple]:
        recognizer = OfflineRecognizer(checkpoint.directory, device=device, precision="float32")
        found = recognizer.transcribe([upload.samples for upload in files.values()])
        return [(one.text, [t[:3] for t in one.tokens]) for one in found]

    assert results(DEVICE) == results("cpu")


def test_files_beside_one_that_is_cancelled_have_the_words_of_the_cpu(checkpoint, files, monkeypatch):
    """The file is dropped while the device may still encode it."""
    monkeypatch.setattr(window_jobs, "STEP_S", 0.0)
    server = WindowServer(checkpoint, device=DEVICE)
    others = {name: upload for name, upload in files.items() if name.startswith("short")}
    server.send("dropped", files["long"].samples[: 20 * RATE_HZ], start=True, end=True)
    assert server.encoder._queue.jobs
    server.send("dropped", end=True)
    done = server.transcribe(others)
    assert {name: done[name].segments for name in others} == segments(checkpoint, others, "cpu")
