"""The addresses of a group's servers: as configured, of a DNS name, or in a file, which may change."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

from penstock_gateway import limits
from penstock_gateway.config import DNS, FILE, check_address
from penstock_gateway.security.files import WatchedFile

log = logging.getLogger(__name__)
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
NoteFile = Callable[[str, bool], None]
"""Takes a source file:PATH, and whether the file is in use as it is."""


async def resolve(name: str, port: int) -> list[str]:
    """HOST:PORT of each A and AAAA record, sorted. OSError where there is none."""
    records = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    hosts = {str(address[0]) for *_, address in records}
    return sorted(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts)


class Discovery:
    """Finds the addresses of one group. What cannot be read leaves those that were found before."""

    def __init__(self, sources: Sequence[str], resolve: Resolve = resolve, note_file: NoteFile = lambda *_: None):
        """sources: HOST:PORT, dns:NAME:PORT or file:PATH. note_file: called as a file is read or newly rejected."""
        self.fixed = [each for each in dict.fromkeys(sources) if not _is_watched(each)]
        """The addresses that do not change."""
        self._found: dict[str, Sequence[str]] = {each: () if _is_watched(each) else (each,) for each in sources}
        self._files: dict[str, WatchedFile] = {}
        self._resolve, self._note_file = resolve, note_file
        self._problems: dict[str, str] = {}
        self._next_query_s = 0.0

    async def addresses(self, now_s: float) -> list[str]:
        """Addresses now, each once. `now_s`: of a monotonic clock; names are queried every 5 s."""
        is_due = now_s >= self._next_query_s
        if is_due:
            # Before the queries: one that takes long delays none of the next ones.
            self._next_query_s = now_s + 5 * limits.TICK_S
        for source in self._found:
            if source.startswith(FILE) or (is_due and source.startswith(DNS)):
                await self._refresh(source)
        return list(dict.fromkeys(address for addresses in self._found.values() for address in addresses))

    async def _refresh(self, source: str) -> None:
        try:
            if source.startswith(FILE):
                self._found[source] = await asyncio.to_thread(self._read, source)
                self._note_file(source, True)
            else:
                name, _, port = source.removeprefix(DNS).rpartition(":")
                self._found[source] = await self._resolve(name, int(port))
        except (OSError, ValueError) as error:  # UnicodeError, too
            if self._problems.get(source) != str(error):
                log.warning("%s: %s; %d addresses stay as they are", source, error, len(self._found[source]))
                if source.startswith(FILE):
                    self._note_file(source, False)
            self._problems[source] = str(error)
            return
        self._problems.pop(source, None)

    def _read(self, source: str) -> Sequence[str]:
        """HOST:PORT of each line of a file, or as before where it has not changed; `#` begins a comment.

        OSError or ValueError says what is wrong, also of an empty file.
        """
        if (file := self._files.get(source)) is None:
            file = self._files[source] = WatchedFile(source.removeprefix(FILE))
        elif not file.changed():
            return self._found[source]
        lines = (line.partition("#")[0].strip() for line in file.text.splitlines())
        if not (addresses := [check_address(line) for line in lines if line]):
            raise ValueError("it has no HOST:PORT")
        return addresses


def _is_watched(source: str) -> bool:
    return source.startswith((DNS, FILE))
