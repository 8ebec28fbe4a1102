import io
import logging
import sys

from penstock_common.log_lines import RateLimit
from penstock_gateway.process.main import configure_logs


def test_lines_per_second_are_limited_and_the_others_counted():
    now_s = [7.5]
    limit = RateLimit(2, lambda: now_s[0])
    assert [limit.passes() for _ in range(5)] == [True, True, False, False, False]
    now_s[0] = 8.0
    assert limit.passes()
    assert (limit.take_left_out(), limit.take_left_out()) == (3, 0)


def test_a_value_cannot_look_like_another_field(monkeypatch):
    line = io.StringIO()
    monkeypatch.setattr(sys, "stderr", line)
    before = logging.getLogger().handlers[:]
    try:
        configure_logs("text")
        fields = {"code": "A", "reason": 'x end=finished "\\\n', "empty": ""}
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("grpc._cython.cygrpc").error("ExecuteBatchError raised in core by servicer method [%s]", "/x")
        logging.getLogger("test").info("rejected", extra={"fields": fields})
    finally:
        logging.getLogger().handlers[:] = before
    assert line.getvalue().count("\n") == 1, "faults of clients have no line of a library"
    assert line.getvalue().endswith(r'info    gateway: rejected code=A reason="x end=finished \"\\\n" empty=""' + "\n")
