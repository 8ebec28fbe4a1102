"""Metrics of a server, and its free slots."""

import re
import urllib.request

from trials.server.recordings import send_empty_stream
from trials.server.running import RunningServer, wait_until

Figures = dict[str, float | int | str]
"""Result of a trial."""


def read_metrics(server: RunningServer) -> dict[str, float]:
    """Returns Penstock's own metrics by name, without the prefix `penstock_`."""
    with urllib.request.urlopen(f"http://{server.url('metrics')}/metrics", timeout=10) as page:
        text = page.read().decode()
    return {name: float(value) for name, value in re.findall(r"^penstock_(\w+)(?:\{\})? (\S+)$", text, re.M)}


def wait_until_free(server: RunningServer, timeout_s: float) -> float:
    """Returns the seconds until all slots are free; AssertionError after `timeout_s`."""

    def is_free() -> bool:
        send_empty_stream(server)  # upon which the server expires idle streams
        return read_metrics(server)["slots_free"] >= server.max_streams

    return wait_until(is_free, timeout_s, "slots are not free")
