"""Validation without a manifest, and the picture of the training curve."""

import pytest

from recipes.an4.monitoring import Validation, plot_curve


def test_nothing_is_measured_without_a_manifest():
    assert Validation(None)({"rnnt": None}) == {}


@pytest.mark.parametrize("rates", [{}, {"WER rnnt [70,6]": 31.0, "WER tdt [70,0]": 40.0}])
def test_draws_a_picture(tmp_path, rates):
    pytest.importorskip("matplotlib", reason="extra `train`")
    points = [
        {"step": 10 * i, "elapsed_s": 15.0 * i, "learning_rate": 1e-3, "norm": 2.0, "ctc": 9.0 / i, "rnnt": 8.0 / i}
        for i in range(1, 6)
    ]
    points[3] |= rates
    del points[1]["rnnt"]  # a head that was not drawn
    plot_curve(points, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
