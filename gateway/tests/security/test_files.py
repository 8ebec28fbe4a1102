import os
import socket
from pathlib import Path

import pytest

from penstock_gateway.security import files
from penstock_gateway.security.files import read_file


def test_only_regular_files_are_read(tmp_path, monkeypatch):
    file, fifo, end, link = (tmp_path / name for name in ("file", "fifo", "socket", "link"))
    file.write_bytes(b"abcd")
    os.mkfifo(fifo)
    link.symlink_to(file)
    monkeypatch.setattr(files, "_MAX_BYTES", 4)
    assert read_file(link) == read_file(str(file)) == b"abcd"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(end))
        for path, kind in (
            (fifo, "a FIFO"),
            (end, "a socket"),
            (tmp_path, "a directory"),
            (Path("/dev/zero"), "a device"),
        ):
            with pytest.raises(OSError, match=f"it is {kind}; accepted: a regular file: '{path}'"):
                read_file(path)
    file.write_bytes(b"abcde")
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_file(file)


def test_a_fifo_that_takes_the_place_of_a_file_just_now(tmp_path, monkeypatch):
    status = os.stat(__file__)
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(files.os, "stat", lambda _: status)
    with pytest.raises(OSError, match="it is a FIFO"):
        read_file(tmp_path / "fifo")
