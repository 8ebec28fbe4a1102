"""Was a long constant load steady: memory and descriptors of each process flat, no stream lost? Does no I/O."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median

from loadtest.soak_readings import Reading
from loadtest.steadiness import growth_of_highest, judge, slope
from loadtest.undisturbed import undisturbed

SPARE_DESCRIPTORS = 4
"""By which a process's count may be higher at the end: connections come and go."""
LOAD_SHARE = 0.5
"""Of the usual rate of answers; readings with less of it lie before the load or after it."""
_WHOLE_SHARE = 0.98
_TOLD_STOLEN_CORES = 0.1
_MIB = 2**20


@dataclass(frozen=True)
class Steadiness:
    """Of one process, after the warm-up."""

    pss_mib: float
    """The mean."""
    pss_slope_mib_per_h: float
    pss_uncertainty_mib_per_h: float
    """Half of the 95 % interval."""
    is_memory_flat: bool | None
    """None where the interval is too wide to tell."""
    descriptors: int
    """The highest count."""
    descriptors_grown: int
    """The highest of the last fifth of the time less that of the first."""
    are_descriptors_flat: bool


def under_load(readings: Sequence[Reading]) -> list[Reading]:
    """Those from the load's begin to its end, found by the server's own count of answers."""
    rates = [
        (after.answered - before.answered) / (after.time_s - before.time_s) for before, after in pairwise(readings)
    ]
    usual = median([rate for rate in rates if rate > 0] or [0.0])
    busy = [i for i, rate in enumerate(rates) if usual and rate >= LOAD_SHARE * usual]
    return list(readings[busy[0] : busy[-1] + 2]) if busy else []


def stolen_cores(readings: Sequence[Reading]) -> tuple[float, float]:
    """What a virtual machine's host gave to others during the readings: the mean, the most between two of them."""

    def between(before: Reading, after: Reading) -> float:
        return (after.stolen_cpu_s - before.stolen_cpu_s) / (after.time_s - before.time_s)

    if len(readings) < 2:
        return 0.0, 0.0
    return between(readings[0], readings[-1]), max(between(*pair) for pair in pairwise(readings))


def steadiness(readings: Sequence[Reading], name: str, most_growth_mib_per_h: float) -> Steadiness:
    """Of a process that is in all readings. ValueError where they are too few."""
    uses = [reading.processes[name] for reading in readings]
    found = slope([reading.time_s for reading in readings], [use.pss_bytes / _MIB for use in uses])
    descriptors = [use.descriptors for use in uses]
    grown = int(growth_of_highest(descriptors))
    return Steadiness(
        found.mean,
        found.per_hour,
        found.uncertainty_per_hour,
        judge(found, most_growth_mib_per_h),
        max(descriptors),
        grown,
        grown <= SPARE_DESCRIPTORS,
    )


def soak_document(
    readings: Sequence[Reading], window: dict, load_s: float, warm_up_s: float, most_growth_mib_per_h: float
) -> dict[str, object]:
    """The verdict as JSON values, from `warm_up_s` seconds after the load's begin on.

    `window`: the load test's only one, as its report has it; load_s: how long it was to be. Too few readings are a
    reason not to call it steady.
    """
    loaded = under_load(readings)
    counted = [reading for reading in loaded if reading.time_s >= loaded[0].time_s + warm_up_s]
    names = sorted({name for reading in counted for name in reading.processes})
    lasting = [name for name in names if all(name in reading.processes for reading in counted)]
    lost = window["errors"]["count"] + window["refusals"]["count"]
    stolen, most_stolen = stolen_cores(loaded)
    reasons = [f"{name} was not there all the time" for name in names if name not in lasting]
    if not names:
        reasons.append("no process of the server was seen")
    if window["seconds"] < _WHOLE_SHARE * load_s:
        reasons.append(f"it was ended after {window['seconds'] / 60:.1f} of {load_s / 60:.1f} minutes")
    try:
        processes = {name: steadiness(counted, name, most_growth_mib_per_h) for name in lasting}
    except ValueError as error:
        processes = {}
        reasons.append(str(error))
    for name, found in processes.items():
        reasons += _reasons(name, found, most_growth_mib_per_h)
    minutes = window["minutes"]
    if lost:
        reasons.append(f"{lost} streams were lost or refused")
    if window["unanswered_pieces"]:
        reasons.append(f"{window['unanswered_pieces']} pieces of audio were never answered")
    return {
        "warm_up_s": warm_up_s,
        "seconds": counted[-1].time_s - counted[0].time_s if counted else 0.0,
        "readings": len(counted),
        "most_growth_mib_per_h": most_growth_mib_per_h,
        "processes": {name: asdict(found) for name, found in processes.items()},
        "utterances": window["utterances"],
        "streams_lost": lost,
        "unanswered_pieces": window["unanswered_pieces"],
        "minutes": len(minutes),
        "minutes_without_late_chunk": sum(not minute["late_chunks"] for minute in minutes),
        "minutes_without_lost_stream": sum(not minute["streams_lost"] for minute in minutes),
        "undisturbed": asdict(undisturbed(counted)),
        "stolen_cores": stolen,
        "most_stolen_cores": most_stolen,
        "is_steady": not reasons,
        "reasons": reasons,
    }


def soak_lines(soak: dict) -> list[str]:
    """What a person wants to read first."""
    hours = soak["seconds"] / 3600
    lines = [f"{'STEADY' if soak['is_steady'] else 'NOT STEADY'} over {hours:.2f} h after {soak['warm_up_s']:.0f} s"]
    for name, found in soak["processes"].items():
        lines.append(
            f"  {name}: {_memory(found)}, {found['descriptors']} descriptors ({found['descriptors_grown']:+d})"
        )
    lines.append(
        f"  {soak['utterances']} streams, {soak['streams_lost']} lost; of {soak['minutes']} minutes "
        f"{soak['minutes_without_lost_stream']} without a lost stream, {soak['minutes_without_late_chunk']} without a "
        "late chunk"
    )
    if soak["most_stolen_cores"] >= _TOLD_STOLEN_CORES:
        lines += [
            f"  the machine's host gave {soak['stolen_cores']:.2f} of its cores to others on average, "
            f"{soak['most_stolen_cores']:.2f} at most between two readings (steal)",
            f"  {undisturbed_line(soak)}",
        ]
    return lines + [f"  because: {reason}" for reason in soak["reasons"]]


def undisturbed_line(soak: dict) -> str:
    """What memory did while the host took nothing."""
    calm = soak["undisturbed"]
    grown = ", ".join(f"{name} {growth_mib:+.2f}" for name, growth_mib in calm["growth_mib"].items())
    return f"undisturbed for {calm['seconds'] / 60:.1f} minutes in all, in which these grew by (MiB): {grown}"


def _memory(found: dict) -> str:
    return (
        f"{found['pss_mib']:.1f} MiB, {found['pss_slope_mib_per_h']:+.2f} "
        f"± {found['pss_uncertainty_mib_per_h']:.2f} MiB an hour"
    )


def _reasons(name: str, found: Steadiness, most_growth_mib_per_h: float) -> list[str]:
    reasons = []
    if found.is_memory_flat is not True:
        grows = "grows by" if found.is_memory_flat is False else "may grow, a longer test would tell:"
        reasons.append(f"{name} {grows} {_memory(asdict(found))}; {most_growth_mib_per_h:g} are allowed")
    if not found.are_descriptors_flat:
        reasons.append(f"{name} holds {found.descriptors_grown} descriptors more at the end")
    return reasons
