"""The command line as a process: terminals, signals, pipes and full disks."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import numpy as np
import pytest
import soundfile

from client.tests.helpers.fake_servers import eventually
from client.tests.helpers.fakes import text_of
from client.tests.helpers.terminal import Terminal
from tests.helpers.interrupt import SILENT_ENDS, SLOW_IMPORT, start_interruptible
from tests.helpers.native_log import without_native_log

GRPC_ONLY = pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
COMMAND = [sys.executable, "-m", "penstock_client.cli"]
TEXT = text_of(38_400)


@GRPC_ONLY
def test_interim_on_a_terminal_is_redrawn_in_place(url, audio_file):
    columns = 24
    output, status = run_on_terminal([audio_file, "--interim", "--url", url, "--request-ms", "50"], columns)
    terminal = Terminal(columns)
    terminal.write(output)
    expected = Terminal(columns)
    expected.write(TEXT + "\n")
    assert status == 0
    assert terminal.screen == expected.screen
    assert output.count("\x1b[J") > 5  # it grew before it was final


def run_on_terminal(arguments, columns):
    """The output of the command on a terminal of this width, and its exit status."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment["TERM"] = "xterm"
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdout=theirs, stderr=subprocess.DEVNULL, env=environment
    )
    os.close(theirs)
    output = b""
    deadline_s = time.monotonic() + 60
    try:
        while time.monotonic() < deadline_s and select.select([ours], [], [], 60)[0]:
            if not (data := read_or_end(ours)):
                break
            output += data
        return output.decode().replace("\r\n", "\n"), process.wait(60)
    finally:
        process.kill()
        os.close(ours)


def read_or_end(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # a terminal whose other side is closed
        return b""


def test_ctrl_c_ends_cleanly_and_frees_the_stream(url, protocol, audio_file, recognizer):
    soundfile.write(audio_file, np.zeros(16_000 * 300, np.float32), 16_000)  # a busy machine cannot be late by as much
    arguments = [str(audio_file), "--url", url, "--protocol", protocol, "--simulate-realtime"]
    process = start_interruptible([*COMMAND, *arguments])
    eventually(lambda: len(recognizer.requests) >= 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, without_native_log(err)) == (130, "", "")
    assert recognizer.requests[-1].is_end and not recognizer.received


def test_ctrl_c_during_the_imports_is_silent(tmp_path):
    (tmp_path / "soxr.py").write_text(SLOW_IMPORT)
    process = start_interruptible([*COMMAND, "--version"], env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode in SILENT_ENDS


@GRPC_ONLY
@pytest.mark.parametrize("arguments", [[], ["--interim"]])
def test_a_full_disk_is_one_line(url, audio_file, arguments):
    command = [*COMMAND, str(audio_file), "--url", url, *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    message = "penstock-client: error: OUTPUT_FAILED: standard output: no space left on device\n"
    assert (done.returncode, without_native_log(done.stderr)) == (1, message)


def test_help_that_cannot_be_written_fails():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    message = "penstock-client: error: OUTPUT_FAILED: standard output: no space left on device\n"
    assert (done.returncode, done.stderr) == (1, message)


@GRPC_ONLY
def test_closed_standard_streams_are_empty_ones(url, audio_file):
    def run_shell(redirection, *arguments):
        script = f'exec "$@" {redirection}'
        command = ["/bin/sh", "-c", script, "sh", *COMMAND, *arguments, "--url", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, without_native_log(done.stderr)

    status, out, err = run_shell(">&-", str(audio_file))
    assert (status, out) == (0, "") and "Traceback" not in err
    status, out, err = run_shell("<&-", "-")
    assert (status, out, err) == (1, "", "penstock-client: error: AUDIO_INVALID: -: has no audio\n")


@GRPC_ONLY
def test_a_closed_output_pipe_ends_the_command_quietly(url, audio_file):
    process = subprocess.Popen(
        [*COMMAND, audio_file, audio_file, "--url", url, "--interim", "--simulate-realtime"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    process.stdout.close()
    assert without_native_log(process.stderr.read()) == ""
    assert process.wait(60) == 1
