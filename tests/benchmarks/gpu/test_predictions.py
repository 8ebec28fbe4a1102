"""The predictions agree with the sums that they are made of."""

import pytest

from benchmarks.gpu.predictions import decoder_chunk_ms, encoder_step_ms, graph_ms, loop_ms, matrix_product_ms


def test_a_matrix_product_is_bound_by_arithmetic_or_by_a_launch():
    # 2 * 7000 * 1024 * 4096 operations at 45 TFLOPS
    assert matrix_product_ms(7000, 1024, 4096, "fp32") == pytest.approx(1.305, rel=1e-3)
    assert matrix_product_ms(64, 1024, 4096, "bf16") == 0.0055


def test_an_encoder_step_grows_with_streams_above_the_floor_of_its_launches():
    assert encoder_step_ms(16, 1, "bf16", False) == 5.5 and encoder_step_ms(16, 1, "bf16", True) == 1.8
    # per stream: 1.16 / 45 ms of products, and 0.68 of the other 0.0387 ms
    assert encoder_step_ms(512, 1, "fp32", True) == pytest.approx(512 * (0.02578 + 0.68 * 0.03872), rel=1e-3)
    assert encoder_step_ms(1024, 14, "fp16", True) == encoder_step_ms(1024, 14, "bf16", True)
    for frames in (1, 4, 14):
        assert encoder_step_ms(1024, frames, "bf16", True) < encoder_step_ms(1024, frames, "fp32", True)


def test_graphs_and_loops():
    assert graph_ms(1000) == pytest.approx(1.5) and loop_ms(1000, "full_graph") == pytest.approx(3.0)
    assert loop_ms(1000, "no_while_loops") > loop_ms(1000, "full_graph")


def test_a_decoder_chunk_is_its_launches():
    # 6 + 42 + 5 and 6 labels of 42 + 39 launches each, 1.5 us each
    assert decoder_chunk_ms("label-looping", "torch", "full_graph", 14, False) == pytest.approx(539 * 0.0015)
    assert decoder_chunk_ms("alsd", "torch", "full_graph", 14, False) == pytest.approx(2911 * 0.0015)
    times = [decoder_chunk_ms("boosted", "fused", driver, 4, True) for driver in ("full_graph", "no_while_loops")]
    assert times[0] < times[1] < decoder_chunk_ms("boosted", "fused", "no_graphs", 4, True)
