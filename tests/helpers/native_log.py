"""The log lines that C++ libraries such as gRPC write to the standard error of a process."""

import re

_NATIVE_LINE = re.compile(
    r"^(?:[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+:\d+\] .*|WARNING: All log messages before absl::.*)\n?", re.MULTILINE
)


def without_native_log(stderr: str) -> str:
    """The text without the lines that C++ libraries have logged: what a program itself has said."""
    return _NATIVE_LINE.sub("", stderr)
