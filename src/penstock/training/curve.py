"""The training curve as a picture."""

from pathlib import Path

_KEPT_OUT = ("step", "elapsed_s", "learning_rate", "norm")


def plot_curve(curve: list[dict], path: Path) -> None:
    """Losses over minutes, and the word error rates measured on the way. Needs matplotlib (extra `train`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    rates = axes.twinx()
    names = list(dict.fromkeys(name for point in curve for name in point if name not in _KEPT_OUT))
    for name in names:
        points = [(point["elapsed_s"] / 60, point[name]) for point in curve if name in point]
        if name.startswith("WER"):
            rates.plot(*zip(*points, strict=True), marker="o", linestyle="--", label=name)
        else:
            axes.plot(*zip(*points, strict=True), linewidth=1, label=f"{name} loss")
    axes.set(xlabel="minutes", ylabel="loss", yscale="log")
    rates.set(ylabel="WER, %", ylim=(0, 60))
    axes.legend(loc="upper right")
    if any(name.startswith("WER") for name in names):
        rates.legend(loc="upper center")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
