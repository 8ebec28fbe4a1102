"""Fixtures for the tests of the commands."""

import pytest
import soundfile

from tests.helpers.golden import golden_pcm


@pytest.fixture(scope="module")
def model(golden_bundle) -> str:
    return str(golden_bundle("rnnt_hybrid").directory)


@pytest.fixture
def audio(tmp_path) -> list[str]:
    """medium.wav and short.wav."""
    for signal in ("medium", "short"):
        soundfile.write(tmp_path / f"{signal}.wav", golden_pcm(signal).numpy(), 16000)
    return [str(tmp_path / f"{signal}.wav") for signal in ("medium", "short")]


@pytest.fixture(autouse=True)
def process_is_left_alone(monkeypatch, uncompiled):
    """The command may set threads and the allocator of its own process, not those of the tests."""
    monkeypatch.setattr("penstock.runtime.prepare_process", lambda threads: None)
    monkeypatch.setattr("penstock.transcription.processes.core_count", lambda: 1)
    monkeypatch.delenv("PENSTOCK_MODEL", raising=False)
