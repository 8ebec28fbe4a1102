"""Limits of the operating system that a server needs, checked before it starts."""

import resource

from penstock.errors import SettingError

_OWN_FILES = 128  # of tritonserver without clients: 68 on two cores, and its threads grow with the cores


def raise_open_file_limit(max_streams: int) -> None:
    """Allows this process and its children the files of a server with a connection per stream.

    SettingError if the system's hard limit is lower: Triton would start, reject connections, and use all of a core.
    """
    needed = _OWN_FILES + max_streams
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SettingError(
            f"the limit on open files is {hard} (`ulimit -n`); accepted: {needed} or more for {max_streams} streams"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
