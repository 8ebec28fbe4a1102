"""Notes, readings and figures made up for the tests."""

import numpy as np

from loadtest.machine_use import MachineUse, ProcessShare
from loadtest.processes import GENERATOR, SERVER
from loadtest.records import COMPLETE, PIECE, Utterance
from loadtest.triton_metrics import MemberTimes


def piece_rows(*rows: dict) -> np.ndarray:
    """[n] of PIECE: on time, of 100 ms, answered after 20 ms, unless told otherwise."""
    table = np.zeros(len(rows), PIECE)
    for i, row in enumerate(rows):
        deadline_s = row.get("deadline_s", 0.1 * (i + 1))
        values = {"deadline_s": deadline_s, "sent_s": deadline_s, "answered_s": deadline_s + 0.02, "audio_s": 0.1}
        for name, value in (values | row).items():
            table[name][i] = value
    return table


def utterance(*rows: dict, recording: int = 0, outcome: str = COMPLETE, text: str = "", error: str = "") -> Utterance:
    """With these pieces."""
    return Utterance(recording, outcome, text, error, pieces=piece_rows(*rows))


def machine(
    cores: int = 4, other_cores: float = 0.0, busiest: float = 0.2, stolen: float = 0.0, **shares: float
) -> MachineUse:
    """`shares`: cores of the members, `server` and `generator`."""
    names = {"server": SERVER, "generator": GENERATOR}
    processes = {names.get(name, name): ProcessShare(share, 0.0, 0.0, 0.0) for name, share in shares.items()}
    busy = sum(shares.values()) + other_cores
    return MachineUse(10.0, cores, busy, other_cores, busiest, processes, stolen)


def member(queue_ms: float = 1.0, compute_ms: float = 5.0, requests: float = 100, batches: float = 50) -> MemberTimes:
    """All of whose computing is inference."""
    return MemberTimes(requests, batches, 0.0, queue_ms + compute_ms, queue_ms, 0.0, compute_ms, 0.0)
