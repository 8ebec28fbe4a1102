"""Remarks on what is missing in a file."""

import pytest

from penstock_common.audio.pcm import CUT, DAMAGED, GAP, UNREAD, Remark, Remarks, header


def test_neighbours_of_one_code_are_one_remark():
    remarks = Remarks()
    for code, start_s, lost_s in ((DAMAGED, 1.0, 0.02), (DAMAGED, 1.5, 0.03), (DAMAGED, 2.5, 0.5), (CUT, 2.6, 4.0)):
        remarks.note(code, start_s, lost_s)
    assert remarks == [Remark(DAMAGED, 1.0, 0.05), Remark(DAMAGED, 2.5, 0.5), Remark(CUT, 2.6, 4.0)]


def test_a_file_has_at_most_ten_remarks_whose_seconds_are_all_that_is_lost():
    remarks = Remarks()
    for second in range(0, 200, 2):
        remarks.note(DAMAGED, second, 0.5)
    assert len(remarks) == 10 and sum(remark.lost_s for remark in remarks) == 50.0


def test_the_value_of_a_header():
    assert header([]) == ""
    remarks = [Remark(CUT, 4.351, 2.0), Remark(UNREAD, 6.5, 0.0)]
    assert header(remarks) == "cut; start=4.35; lost=2.00, unread; start=6.50; lost=0.00"


@pytest.mark.parametrize(
    ("remark", "text"),
    [
        (Remark(CUT, 4.3512, 2.00049), "is cut: ends at 4.35 s, 2.00 s are missing"),
        (Remark(CUT, 4.3512, 0.0), "is cut: ends at 4.35 s"),
        (Remark(GAP, 1.0, 3.0), "has no audio at 1.00 s for 3.00 s"),
    ],
)
def test_a_remark_as_text_and_as_json(remark, text):
    assert remark.text == text
    numbers = {"start_s": round(remark.start_s, 3), "lost_s": round(remark.lost_s, 3)}
    assert remark.document == {"code": remark.code, **numbers, "message": text}
