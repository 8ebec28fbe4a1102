"""What the system tells of real processes, this one among them."""

import os
import subprocess
import sys
import time

import pytest

from loadtest.probe import take_snapshot
from loadtest.processes import GENERATOR, SERVER, generator_processes, process_use, server_processes


@pytest.fixture
def child():
    """A process that is called like a member's stub."""
    code = "import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, "/models/encoder/1/model.py"])
    yield process.pid
    process.kill()
    process.wait()


def test_time_and_memory_of_this_process():
    before = process_use([os.getpid()])
    deadline_s = time.process_time() + 0.05
    while time.process_time() < deadline_s:
        pass
    after = process_use([os.getpid()])
    assert after.cpu_s - before.cpu_s >= 0.02  # the system counts in hundredths
    assert 0 < after.pss_bytes <= after.rss_bytes


def test_processes_add_up(child):
    one, other = process_use([os.getpid()]), process_use([child])
    both = process_use([os.getpid(), child])
    assert both.rss_bytes == pytest.approx(one.rss_bytes + other.rss_bytes, rel=0.05)


def test_open_files_are_counted():
    before = process_use([os.getpid()]).descriptors
    with open(os.devnull) as one, open(os.devnull) as other:
        assert process_use([os.getpid()]).descriptors == before + 2
        assert process_use([os.getpid(), os.getpid()]).descriptors == 2 * (before + 2)
        assert not (one.closed or other.closed)


def test_a_process_that_has_gone_counts_as_nothing():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert process_use([gone.pid]).rss_bytes == 0
    assert server_processes(gone.pid) == {}


def test_members_are_known_by_their_models(child):
    found = server_processes(os.getpid())
    assert found["encoder"] == [child]
    assert os.getpid() in found[SERVER]


def test_the_load_generator_is_this_process_and_its_children(child):
    assert {os.getpid(), child} <= set(generator_processes())


def test_a_snapshot_without_a_server_says_what_is_missing():
    snapshot = take_snapshot(None, None)
    assert snapshot.counters is None and "--metrics-url" in snapshot.problem
    assert set(snapshot.usage.processes) == {GENERATOR}


def test_metrics_that_cannot_be_read_are_told():
    snapshot = take_snapshot("http://127.0.0.1:1/metrics", None)
    assert snapshot.counters is None and snapshot.problem.startswith("http://127.0.0.1:1/metrics: ")
