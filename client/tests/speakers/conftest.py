import pytest

from client.tests.helpers.speaking import NEVER_LATE
from penstock_client.speakers import track as tracks


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Sets how long words of live streams wait: for the model, however busy this machine is."""

    def choose(chosen):
        monkeypatch.setattr(tracks, "LIVE_WAITS", chosen)

    choose(NEVER_LATE)
    return choose
