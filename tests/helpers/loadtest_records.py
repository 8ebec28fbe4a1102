"""Synthetic records and figures for the tests of the load test."""

import numpy as np

from loadtest.options import Window
from loadtest.player import COMPLETE, REQUEST, Utterance
from loadtest.processes import GENERATOR, SERVER, MachineUse, ProcessUse, Usage
from loadtest.summary import Conditions, Snapshot, summarize

CONDITIONS = Conditions(references=["ada lovelace", "charles babbage"], chunk_s=0.5, cores=2)
WINDOW = Window(0.01, 10.0, 20.0)
BEGAN_S = 1000.0


def request_rows(*rows: dict) -> np.ndarray:
    """[n] of REQUEST; by default on time, of 100 ms, answered after 20 ms."""
    table = np.zeros(len(rows), REQUEST)
    for i, row in enumerate(rows):
        deadline_s = row.get("deadline_s", 0.1 * (i + 1))
        values = {"deadline_s": deadline_s, "sent_s": deadline_s, "answered_s": deadline_s + 0.02, "audio_s": 0.1}
        for name, value in (values | row).items():
            table[name][i] = value
    return table


def utterance(*rows: dict, recording: int = 0, outcome: str = COMPLETE, text: str = "", error: str = "") -> Utterance:
    """An utterance with these requests."""
    return Utterance(recording, outcome, text, error, requests=request_rows(*rows))


def machine(cores: int = 4, other_cores: float = 0.0, busiest: float = 0.2, **shares: float) -> MachineUse:
    """`shares`: cores of the models, `server` and `generator`."""
    names = {"server": SERVER, "generator": GENERATOR}
    processes = {names.get(name, name): ProcessUse(share, 0.0, 0.0) for name, share in shares.items()}
    busy = sum(shares.values()) + other_cores
    server = busy - other_cores - shares.get("generator", 0.0)
    return MachineUse(10.0, cores, busy, server, other_cores, busiest, 0.0, processes)


def counters(requests: float) -> dict:
    """Counters of a server whose models each took `requests` requests in half as many batches."""
    times_us = {"request": 9000, "queue": 2000, "compute_input": 100, "compute_infer": 800, "compute_output": 100}
    found = {}
    for model in ("features", "encoder", "decoder", "asr"):
        found |= {(model, "request_success"): requests, (model, "exec_count"): requests / 2}
        found |= {(model, f"{part}_duration_us"): requests * time_us for part, time_us in times_us.items()}
    return found


def snapshot(time_s: float, requests: float) -> Snapshot:
    return Snapshot(Usage(time_s, 0.3 * time_s), counters(requests))


def summary(utterances: list[Utterance], requests: tuple = (100.0, 300.0)) -> dict:
    before, after = (snapshot(moment_s, count) for moment_s, count in zip((10.0, 20.0), requests, strict=True))
    return summarize(WINDOW, BEGAN_S, utterances, before, after, CONDITIONS)


def spoken(*offsets_s: float, delays_s: float = 0.02, **more) -> Utterance:
    """Requests with deadlines at these seconds of the test, each a chunk, the last one final."""
    rows = [
        {
            "deadline_s": BEGAN_S + offset_s,
            "sent_s": BEGAN_S + offset_s,
            "answered_s": BEGAN_S + offset_s + delays_s,
            "completes_chunk": True,
            "is_last": offset_s == offsets_s[-1],
        }
        for offset_s in offsets_s
    ]
    return utterance(*rows, **more)
