import pytest

from loadtest.machine_use import machine_use, server_cores
from loadtest.processes import GENERATOR, SERVER, ProcessUse, Usage

MIB = 2**20


def usage(time_s: float, busy_s: float, generator_cpu_s: dict[int, float], **cpu_s: float) -> Usage:
    processes = {name: ProcessUse(seconds, 30 * MIB, 20 * MIB + int(time_s * MIB)) for name, seconds in cpu_s.items()}
    return Usage(time_s, busy_s, processes, generator_cpu_s, stolen_cpu_s=time_s / 5)


def test_by_hand():
    names = {"encoder": 1.0, SERVER: 2.0, GENERATOR: 4.0}
    before = usage(100.0, 50.0, {7: 1.0, 8: 3.0}, **names)
    after = usage(110.0, 66.0, {7: 4.0, 8: 4.0}, **{name: value + 4.0 for name, value in names.items()})
    use = machine_use(before, after, cores=2)
    assert (use.seconds, use.busy_cores, use.other_cores, use.stolen_cores) == pytest.approx((10.0, 1.6, 0.4, 0.2))
    assert use.busiest_generator_cores == pytest.approx(0.3)
    assert server_cores(use) == pytest.approx(0.8)
    share = use.processes["encoder"]
    assert (share.cores, share.rss_mib, share.pss_mib, share.pss_growth_mib) == pytest.approx((0.4, 30, 130, 10))


def test_shares_and_others_add_up_to_what_was_busy():
    use = machine_use(usage(0.0, 0.0, {}, encoder=0.0), usage(4.0, 6.0, {}, encoder=3.0), cores=2)
    assert sum(share.cores for share in use.processes.values()) + use.other_cores == pytest.approx(use.busy_cores)


def test_a_process_that_is_new_counts_from_nothing():
    use = machine_use(usage(0.0, 0.0, {}), usage(2.0, 2.0, {9: 1.0}, encoder=1.0), cores=2)
    assert (use.processes["encoder"].cores, use.processes["encoder"].pss_growth_mib) == (0.5, 0.0)
    assert use.busiest_generator_cores == 0.5


def test_counters_of_the_system_that_disagree_leave_nothing_negative():
    assert machine_use(usage(0.0, 0.0, {}), usage(2.0, 1.0, {}, encoder=1.5), cores=2).other_cores == 0.0


def test_readings_must_be_apart():
    with pytest.raises(ValueError, match="0 s apart"):
        machine_use(usage(1.0, 0.0, {}), usage(1.0, 0.0, {}), cores=2)
