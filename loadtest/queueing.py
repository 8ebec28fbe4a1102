"""The M/D/1 queue: what a member's waiting time should be, from how often it works and how long that takes.

Galvez, Kaldewey, "GPU-accelerated WFST beam search decoder for CTC-based speech recognition", section 3.1: one server,
a constant service time D = 1 / mu, arrivals that are Poisson with rate lambda. A "request" is a batch there and here.
"""

from typing import NamedTuple


class Prediction(NamedTuple):
    """Means, in seconds; infinite where more arrives than is served."""

    utilisation: float
    """lambda / mu: the share of time in which the server works."""
    queue_s: float
    total_s: float


def predict(arrivals_per_s: float, service_s: float) -> Prediction:
    """omega = 1 / mu + lambda / (2 mu (mu - lambda)), the paper's mean latency. Neither argument may be negative."""
    if arrivals_per_s < 0 or service_s < 0:
        raise ValueError(f"{arrivals_per_s:g} arrivals a second and {service_s:g} s of service, expected none below 0")
    utilisation = arrivals_per_s * service_s
    if utilisation >= 1:
        return Prediction(utilisation, float("inf"), float("inf"))
    queue_s = utilisation * service_s / (2 * (1 - utilisation))  # the same, with mu = 1 / service_s
    return Prediction(utilisation, queue_s, service_s + queue_s)
