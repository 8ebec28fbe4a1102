"""Arrays and kaldifst hold the same transducer."""

import kaldifst
import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.scoring.wfst.building.fst_arrays import from_fst, join_arcs, to_fst, write_openfst

TEXT = "0\t1\t1\t1\t0.5\n0\t1\t2\t0\t1.5\n1\t0\t0\t3\t-0.25\n1\t2\t7\t7\n2\t0.125\n"


def test_what_kaldifst_reads_comes_back():
    arrays = from_fst(kaldifst.compile(TEXT))
    assert (arrays.start, arrays.state_count, str(arrays)) == (0, 3, "3 states, 4 arcs")
    assert arrays.sources.tolist() == [0, 0, 1, 1]
    assert arrays.inputs.tolist() == [1, 2, 0, 7]
    assert arrays.outputs.tolist() == [1, 0, 3, 7]
    assert arrays.weights.tolist() == [0.5, 1.5, -0.25, 0.0]
    assert arrays.targets.tolist() == [1, 1, 0, 2]
    assert arrays.final_weights.tolist() == [np.inf, np.inf, 0.125]
    assert str(to_fst(arrays)).splitlines() == str(kaldifst.compile(TEXT)).splitlines()


def test_arcs_may_come_in_any_order(tmp_path):
    finals = np.array([np.inf, 0.125])
    fst = join_arcs(1, finals, ([1, 0], 3, [4, 5], 0.5, [0, 1]), ([0], 1, 2, 0.25, 0))
    again = from_fst(to_fst(fst))
    assert again.start == 1
    assert again.sources.tolist() == [0, 0, 1]
    assert again.inputs.tolist() == [3, 1, 3]
    write_openfst(fst, tmp_path / "g.fst")
    read = from_fst(kaldifst.StdVectorFst.read(str(tmp_path / "g.fst")))
    for left, right in zip(read, again, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_file_that_cannot_be_written(tmp_path):
    fst = from_fst(kaldifst.compile(TEXT))
    with pytest.raises(PenstockError, match="OUTPUT_FAILED"):
        write_openfst(fst, tmp_path / "gone" / "g.fst")
