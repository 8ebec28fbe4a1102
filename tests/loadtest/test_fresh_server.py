"""The facts of the server under test in a report."""

from loadtest.fresh_server import settings_beyond


def test_settings_of_the_environment_are_named_but_the_plan_s_own_are_not(monkeypatch):
    monkeypatch.setenv("PENSTOCK_QUEUE_DELAY_MS", "80")
    monkeypatch.setenv("PENSTOCK_THREADS", "7")
    monkeypatch.setenv("PENSTOCK_DRAIN_SECONDS", "")
    monkeypatch.setenv("PENSTOCK_CACHE", "/elsewhere")
    found = settings_beyond({"PENSTOCK_THREADS": "1"})
    assert found["queue_delay_ms"] == "80"
    assert found.keys().isdisjoint({"threads", "drain_seconds", "cache"})
