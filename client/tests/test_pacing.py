from penstock_client.pacing import Pacer


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_deadlines_do_not_drift_when_every_wait_is_too_long():
    clock = Clock()
    pacer = Pacer(clock)
    late_s = []
    for index in range(1, 1001):
        clock.now_s += pacer.remaining_s(index * 1600) + 0.004
        late_s.append(clock.now_s - (100.0 + index * 0.1))
    assert max(late_s) < 0.0041


def test_a_late_piece_is_made_up_for():
    clock = Clock()
    pacer = Pacer(clock)
    clock.now_s += 0.35
    assert [round(pacer.remaining_s(n * 1600), 6) for n in (1, 2, 3, 4)] == [0, 0, 0, 0.05]
