"""Tables: measured values beside predictions, then failures and skips."""

from benchmarks.gpu.tables import to_markdown


def test_tables_of_measurements():
    records = [
        {"name": "environment", "case": {}, "environment": {"torch": "2.11"}},
        {"name": "step", "case": {"streams": 1}, "value": 3.0, "unit": "ms", "predicted": 2.0},
        {"name": "step", "case": {"streams": 2, "launch": "eager"}, "value": 4.0, "unit": "ms", "predicted": None},
        {"name": "profile", "case": {"streams": 2}, "value": 4.0, "unit": "ms", "predicted": None,
         "kernels": [{"kernel": "gemm", "ms": 1.25, "calls": 2.0}]},
        {"name": "step", "case": {"streams": 9}, "error": "RuntimeError: out of memory"},
        {"name": "graph", "case": {"driver": "full_graph"}, "skipped": "no CUDA device"},
    ]  # fmt: skip
    lines = to_markdown(records).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert ["streams", "launch", "ms", "predicted", "measured / predicted"] in cells
    assert ["1", "", "3", "2", "1.50"] in cells and ["2", "eager", "4", "", ""] in cells
    assert ["gemm", "1.2500", "2"] in cells
    assert "- step streams=9: RuntimeError: out of memory" in lines
    assert "- graph driver=full_graph: no CUDA device" in lines and "2.11" in lines[0]
