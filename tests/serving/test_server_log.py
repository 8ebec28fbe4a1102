import os
import threading
from typing import Any

from penstock.serving.server_log import ServerLog

LOAD_ERROR = (
    "E1121 02:24:04.545147 21781 model_lifecycle.cc:642] \"failed to load 'encoder' version 1: Internal: "
    'CheckpointError: CHECKPOINT_INVALID: weights.safetensors: tensor \\"a\\" is missing\\n\\nAt:\\n  '
    '/x/model.py(6): initialize\\n"'
)
BAD_OPTION = 'Bad option: "--http-port".'
NOISE = "I1121 02:24:03.384666 21781 server.cc:604] nothing"


def read_log(*lines: str, **options: Any) -> tuple[ServerLog, list[str]]:
    reader, writer = os.pipe()
    forwarded: list[str] = []
    log = ServerLog(os.fdopen(reader), forwarded.append, **options)
    with os.fdopen(writer, "w") as stream:
        stream.writelines(f"{line}\n" for line in lines)
    log.wait_until_closed(5)
    return log, forwarded


def test_a_models_own_words_are_the_reason():
    log, _ = read_log(NOISE, LOAD_ERROR, LOAD_ERROR, "error: creating server: Internal - failed to load all models")
    assert log.failure_reason() == 'model encoder: CHECKPOINT_INVALID: weights.safetensors: tensor "a" is missing'


def test_without_a_models_words_the_last_errors_are():
    log, _ = read_log(NOISE, 'E1121 02:00:50.487795 10665 main.cc:245] "failed to start GRPC service"', "\tusage")
    assert log.failure_reason() == "failed to start GRPC service"
    assert read_log(BAD_OPTION, "  --usage")[0].failure_reason() == BAD_OPTION


def test_a_crash_is_the_reason_whatever_was_wrong_with_the_machine():
    no_gpu = 'E1121 18:11:21.996419 10894 server.cc:241] "CudaDriverHelper has not been initialized."'
    crash = ("terminate called after throwing an instance of 'lock_exception'", "  what():  lock_exception")
    log, _ = read_log(no_gpu, *crash, "Signal (6) received.", " 0# 0x000055FCA089352D in /x/tritonserver")
    assert log.failure_reason() == (
        "terminate called after throwing an instance of 'lock_exception'; what(): lock_exception; Signal (6) received."
    )
    assert read_log(no_gpu, "Signal (15) received.")[0].failure_reason() == "Signal (15) received."


def test_what_was_before_the_server_was_ready_is_no_reason():
    log, _ = read_log(LOAD_ERROR)
    log.release()
    assert log.failure_reason() == "its log is empty"


WARNING = 'W1121 02:24:03.384666 21781 x.cc:1] "odd"'
OWN = "2026-11-22 09:47:28.924 info    features: stream ended stream=a"


def after_release(*lines: str, **options: Any) -> list[str]:
    """Forwards lines that come once the server is ready."""
    reader, writer = os.pipe()
    forwarded: list[str] = []
    log = ServerLog(os.fdopen(reader), forwarded.append, **options)
    log.release()
    with os.fdopen(writer, "w") as stream:
        stream.writelines(f"{line}\n" for line in lines)
    log.wait_until_closed(60)
    return forwarded


def test_lines_of_models_are_forwarded_at_once_and_are_no_reason():
    log, forwarded = read_log(OWN)
    assert forwarded == [OWN + "\n"]
    assert log.failure_reason() == "its log is empty"


def test_of_a_ready_server_warnings_are_forwarded_and_false_alarms_are_not():
    alarm = 'W1121 02:24:03.384666 21781 x.cc:1] "failed to allocate pinned system memory"'
    assert after_release(NOISE, WARNING, alarm, "") == [WARNING + "\n"]
    assert after_release(NOISE, WARNING, level="error") == []
    assert after_release(NOISE, alarm, is_verbose=True) == [NOISE + "\n", alarm + "\n"]


def test_a_reader_that_blocks_does_not_block_the_server():
    is_free = threading.Event()
    lines: list[str] = []

    def forward(line: str) -> None:
        assert is_free.wait(60)
        lines.append(line)

    reader, writer = os.pipe()
    log = ServerLog(os.fdopen(reader), forward)
    log.release()
    with os.fdopen(writer, "w") as stream:
        stream.writelines(f"{OWN}\n" for _ in range(12_000))  # more than wait; the writes do not block
    is_free.set()
    log.wait_until_closed(60)
    assert 10_000 <= len(lines) < 12_000
    assert any("lines of the log are missing: its reader is too slow" in line for line in lines)


def test_a_lost_process_is_named_in_plain_words():
    error = "E1121 02:24:04.545147 21781 m.cc:6] \"failed to load 'encoder' version 1: Internal: Stub process "
    log, _ = read_log("free(): invalid pointer", error + "'encoder_0_0' is not healthy.\"", "error: creating server: I")
    last = "the last line of standard error: free(): invalid pointer"
    assert log.load_failure() == f"model encoder: its process has ended; {last}"
    for ends in ({"encoder": "ended by SIGABRT", "": "ended"}, {"": "ended by SIGABRT"}):
        log.ends = ends.copy
        assert log.load_failure() == f"model encoder: its process has ended by SIGABRT; {last}"
