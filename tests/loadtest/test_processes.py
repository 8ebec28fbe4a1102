"""Readings of real processes, this one among them, and the use between two readings."""

import subprocess
import sys

import pytest

from loadtest.processes import GATEWAY, GENERATOR, SERVER, Usage, machine_use, read_usage, server_processes

PARENT = """
import subprocess, sys
model = "/".join(["/models", "encoder", "1", "model.py"])  # not in this process's own command line
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", model])
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
"""


def test_a_process_that_has_gone_counts_as_nothing():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert server_processes(gone.pid) == {}
    assert set(read_usage(gone.pid).pss_mib) == {GENERATOR}


def usage(time_s: float, busy_s: float, generator_cpu_s: dict[int, float], **cpu_s: float) -> Usage:
    return Usage(time_s, busy_s, time_s / 5, cpu_s, dict.fromkeys(cpu_s, 20 + time_s), generator_cpu_s)


def test_by_hand():
    names = {"encoder": 1.0, SERVER: 2.0, GENERATOR: 4.0}
    before = usage(100.0, 50.0, {7: 1.0, 8: 3.0}, **names)
    after = usage(110.0, 66.0, {7: 4.0, 8: 4.0}, **{name: value + 4.0 for name, value in names.items()})
    use = machine_use(before, after, cores=2)
    assert (use.seconds, use.busy_cores, use.other_cores, use.server_cores) == pytest.approx((10.0, 1.6, 0.4, 0.8))
    assert use.busiest_generator_cores == pytest.approx(0.3)
    assert use.steal_percent == pytest.approx(10.0)  # 2 s of 20 core seconds
    encoder = use.processes["encoder"]
    assert (encoder.cores, encoder.pss_mib, encoder.pss_growth_mib) == pytest.approx((0.4, 130, 10))
    assert sum(process.cores for process in use.processes.values()) + use.other_cores == pytest.approx(use.busy_cores)


def test_a_gateway_is_neither_the_server_nor_another_program():
    before, after = (usage(at_s, at_s, {}, **{GATEWAY: at_s / 4, SERVER: at_s / 2}) for at_s in (0.0, 2.0))
    use = machine_use(before, after, cores=2)
    assert (use.server_cores, use.other_cores, use.processes[GATEWAY].cores) == pytest.approx((0.5, 0.25, 0.25))
