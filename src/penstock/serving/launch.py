"""Start of tritonserver: ports, open files, command line, environment, working directory. Starts nothing itself.

Ports and limits are checked before anything starts, so that an error names a port in use.
"""

import errno
import itertools
import os
import random
import resource
import secrets
import socket
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from penstock.errors import PortError, SettingError
from penstock.serving.model_repository import SPEAKERS
from penstock.serving.triton_install import TritonInstall
from penstock_common.listening import LOOPBACK, tcp_socket

FREE_PORTS = range(20000, 32768)
"""Below the ports of outgoing connections, which could otherwise take a server's port while it restarts."""
OWN_FILES = 128  # tritonserver without clients has 68 on two cores, and its threads grow with the cores
_CLOSED_APIS, _LOADING_API = "shared-memory,trace,logging", "model-repository"
LOADING_HEADER = "x-penstock-loading"
"""Opens the interface for loading models over gRPC, with the secret of `launch_command`."""
_MODEL_START_S = 300  # Triton's default of 30 is too short for a large checkpoint or a busy machine
_PING_INTERVAL_MS = 1000
_POOLED_REQUESTS = 4096
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")  # Linux; Windows' subsystem for it
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Ports(NamedTuple):
    """TCP ports; 0 means any free one of `FREE_PORTS`."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0


class OtherPort(NamedTuple):
    """A port of another process that starts with the server."""

    option: str
    """Chooses it."""
    address: str
    port: int
    """0: any free one."""


@dataclass(frozen=True)
class ServerOptions:
    """Configuration of a server process."""

    model_repository: Path
    ports: Ports = field(default_factory=Ports)
    address: str = LOOPBACK
    drain_s: int = 8
    """Seconds that live streams have to end after a stop; below the ten seconds that Docker waits."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the models (penstock.serving.settings), added to the environment of this process."""
    information: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the ensembles (`penstock.serving.information`)."""
    is_verbose: bool = False
    """True if Triton logs everything, not only warnings and errors."""


def claim_ports(wanted: Ports, address: str, others: Sequence[OtherPort] = ()) -> tuple[Ports, list[int]]:
    """The ports of a server and of other processes, with each 0 replaced by a free one.

    PortError names a port that is given twice or cannot be bound. All are bound at the same time, so that they differ,
    and released for the processes.
    """
    own = [OtherPort(f"--{name}-port", address, port) for name, port in wanted._asdict().items()]
    for first, second in itertools.combinations([*own, *others], 2):
        if first.port == second.port != 0:
            raise PortError(f"{first.option} and {second.option} are both {first.port}; choose two ports")
    with ExitStack() as bound:
        sockets = [bound.enter_context(closing(_bind(each))) for each in (*own, *others)]
        ports = [each.getsockname()[1] for each in sockets]
    return Ports(*ports[: len(own)]), ports[len(own) :]


def raise_open_file_limit(max_streams: int, files_per_stream: int = 1) -> None:
    """Allows this process and its children the files of a server with a connection per stream.

    SettingError if the system's hard limit is lower: Triton would start, reject connections, and use all of a core.
    """
    needed = OWN_FILES + max_streams * files_per_stream
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SettingError(
            f"the limit on open files is {hard} (`ulimit -n`); accepted: {needed} or more for {max_streams} streams"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def launch_command(
    install: TritonInstall, options: ServerOptions, ports: Ports, shared_memory: str, loading_secret: str
) -> list[str]:
    """Arguments of tritonserver; shared_memory: prefix of the names of the models' regions.

    loading_secret: opens the interface for loading models where `speakers` is served, until `hide_argument` hides it.
    """
    arguments = {
        "model-repository": options.model_repository.absolute(),
        "model-control-mode": "none",
        "exit-timeout-secs": options.drain_s,
        "log-info": str(options.is_verbose).lower(),
        # With the default pool of 8, Triton 2.51 ends by SIGSEGV when several requests of a stream wait
        # (docs/internals/log.md).
        "grpc-infer-allocation-pool-size": _POOLED_REQUESTS,
        # gRPC allows a ping in 5 minutes: clients that keep a silent stream's connection alive would get GOAWAY.
        "grpc-http2-min-recv-ping-interval-without-data": _PING_INTERVAL_MS,
        "grpc-keepalive-permit-without-calls": "true",
        "allow-sagemaker": "false",
        "allow-vertex-ai": "false",
    }
    if not has_gpu(options):
        arguments["pinned-memory-pool-byte-size"] = 0  # else Triton warns that it found no CUDA driver to pin memory
    for name, port in ports._asdict().items():
        address = options.address
        if ":" in address:  # with the prefix HTTP and metrics take IPv6 alone, without it IPv4 alone
            address = f"[{address}]" if name == "grpc" else f"ipv6:{address}"
        arguments |= {f"{name}-address": address, f"{name}-port": port}
    # These interfaces are not used, so the secret is not kept. Other users of the machine can read the command line,
    # but no header can contain the line break in the secret.
    secret = f"x-penstock-closed={secrets.token_hex(16)}\n{secrets.token_hex(16)}"
    arguments["http-restricted-api"] = f"{_CLOSED_APIS},{_LOADING_API}:{secret}"
    grpc_secrets = {f"{_CLOSED_APIS},{_LOADING_API}": secret}
    if (options.model_repository / SPEAKERS).is_dir():  # without it the server stays ready
        arguments |= {"model-control-mode": "explicit", "load-model": "*", "strict-readiness": "false"}
        grpc_secrets = {_CLOSED_APIS: secret, _LOADING_API: f"{LOADING_HEADER}={loading_secret}"}
    if install.backend_directory is not None:
        arguments["backend-directory"] = install.backend_directory
    flags = [f"--{name}={value}" for name, value in arguments.items()]
    flags += [f"--grpc-restricted-protocol={names}:{pair}" for names, pair in grpc_secrets.items()]
    for setting in (f"shm-region-prefix-name={shared_memory}", f"stub-timeout-seconds={_MODEL_START_S}"):
        flags.append(f"--backend-config=python,{setting}")
    return [str(install.executable), "--disable-auto-complete-config", *flags]


def hide_argument(process_id: int, text: str) -> bool | None:
    """Overwrites it on the command line of a process, which all users of the machine can read. False if that fails.

    None while the process may still have to read it: before it has threads.
    """
    process = Path(f"/proc/{process_id}")
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        if int(fields[17]) < 2:  # its threads
            return None
        place = int(fields[45]) + (process / "cmdline").read_bytes().index(text.encode())
        with (process / "mem").open("r+b", buffering=0) as memory:
            memory.seek(place)
            memory.write(b"\n" * len(text))  # no header can contain it, should it be read late
        return True
    except (OSError, ValueError) as error:  # ValueError: it is not there
        return isinstance(error, ValueError)


def launch_environment(install: TritonInstall, options: ServerOptions, runtime: Path) -> dict[str, str]:
    """The environment of this process plus the variables of server and models.

    The models run in the first `python3` on PATH: the running interpreter's, so that they find its packages.
    """
    threads = options.environment.get("PENSTOCK_THREADS") or os.environ.get("PENSTOCK_THREADS") or "1"
    environment = {
        **os.environ,
        **dict.fromkeys(_THREAD_VARIABLES, threads),  # the three models share the cores
        **options.environment,
        "PENSTOCK_RUNTIME_DIR": str(runtime),
    }
    environment["PATH"] = _joined([Path(sys.executable).parent], environment.get("PATH"))
    if install.library_directories:
        environment["LD_LIBRARY_PATH"] = _joined(install.library_directories, environment.get("LD_LIBRARY_PATH"))
    return environment


def has_gpu(options: ServerOptions) -> bool:
    """True if the models may run on a GPU of this machine."""
    return options.environment.get("PENSTOCK_DEVICE") != "cpu" and any(map(os.path.exists, _GPU_FILES))


def working_directory(runtime: Path) -> Path:
    """The working directory of tritonserver.

    Triton's Python stub ignores PYTHONPATH and searches the working directory first. So it must not be the user's
    current directory; `src` makes `penstock` importable from a checkout that is not installed.
    """
    source = Path(__file__).resolve().parents[2]
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return runtime if source in installed else source


def _bind(wanted: OtherPort) -> socket.socket:
    option, address, port = wanted
    name = option.removeprefix("--").replace("-port", " port")
    candidates = [port] if port else random.SystemRandom().sample(FREE_PORTS, len(FREE_PORTS))
    for candidate in candidates:
        try:
            return _listen(candidate, address)
        except (OSError, OverflowError) as error:
            if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
                raise PortError(f"{name} {candidate} on {address}: {error}") from error
    if not port:
        raise PortError(f"no port from {FREE_PORTS[0]} to {FREE_PORTS[-1]} is free on {address}")
    raise PortError(f"{name} {port} is in use on {address}; choose another with {option} (0: any free one)")


def _listen(port: int, address: str) -> socket.socket:
    bound = tcp_socket(address)
    try:
        bound.bind((address, port))
        bound.listen()
    except (OSError, OverflowError):
        bound.close()
        raise
    return bound


def _joined(first: list[Path] | tuple[Path, ...], rest: str | None) -> str:
    return os.pathsep.join([*map(str, first), *([rest] if rest else [])])
