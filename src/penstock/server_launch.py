"""How tritonserver is started: command line, environment, working directory. Starts nothing itself."""

import os
import secrets
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.ports import Ports
from penstock.triton_install import TritonInstall

LOOPBACK, ALL_INTERFACES = "127.0.0.1", "0.0.0.0"
_CLOSED_APIS = "shared-memory,model-repository,trace,logging"
_MEMBER_START_S = 300  # 30 otherwise: too little for a large checkpoint or a busy machine
_POOLED_REQUESTS = 4096
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class ServerOptions:
    """How a server is to run."""

    model_repository: Path
    ports: Ports = field(default_factory=Ports)
    address: str = LOOPBACK
    drain_s: int = 8
    """How long live streams may go on when the server is stopped; less than the ten seconds that Docker waits."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """For the models (penstock.settings), on top of our own."""


def launch_command(install: TritonInstall, options: ServerOptions, ports: Ports, shared_memory: str) -> list[str]:
    """Arguments of tritonserver. `shared_memory`: how the names of the models' regions begin."""
    arguments = {
        "model-repository": options.model_repository.absolute(),
        "model-control-mode": "none",
        "exit-timeout-secs": options.drain_s,
        # With the usual pool of 8, Triton 2.51 ends by SIGSEGV when several requests of a stream wait (docs/log.md).
        "grpc-infer-allocation-pool-size": _POOLED_REQUESTS,
        "allow-sagemaker": "false",
        "allow-vertex-ai": "false",
    }
    for name, port in ports._asdict().items():
        arguments |= {f"{name}-address": options.address, f"{name}-port": port}
    # Nobody needs these interfaces, so nobody gets the secret. Other users of the machine can read command lines, but
    # the line break in this one fits into no header.
    secret = f"x-penstock-closed={secrets.token_hex(16)}\n{secrets.token_hex(16)}"
    arguments |= {flag: f"{_CLOSED_APIS}:{secret}" for flag in ("http-restricted-api", "grpc-restricted-protocol")}
    if install.backend_directory is not None:
        arguments["backend-directory"] = install.backend_directory
    flags = [f"--{name}={value}" for name, value in arguments.items()]
    for setting in (f"shm-region-prefix-name={shared_memory}", f"stub-timeout-seconds={_MEMBER_START_S}"):
        flags.append(f"--backend-config=python,{setting}")
    return [str(install.executable), "--disable-auto-complete-config", *flags]


def launch_environment(
    install: TritonInstall, options: ServerOptions, runtime: Path, preloaded: Path | None = None
) -> dict[str, str]:
    """Our own environment with what server and models need. `preloaded`: a library that goes before libc's functions.

    The models' interpreter is the `python3` that comes first on PATH: ours, so that they have our packages.
    """
    threads = options.environment.get("PENSTOCK_THREADS") or os.environ.get("PENSTOCK_THREADS") or "1"
    environment = {
        **os.environ,
        **dict.fromkeys(_THREAD_VARIABLES, threads),  # three members share the cores
        **options.environment,
        "PENSTOCK_RUNTIME_DIR": str(runtime),
    }
    environment["PATH"] = _joined([Path(sys.executable).parent], environment.get("PATH"))
    if install.library_directories:
        environment["LD_LIBRARY_PATH"] = _joined(install.library_directories, environment.get("LD_LIBRARY_PATH"))
    if preloaded is not None:
        environment["LD_PRELOAD"] = _joined([preloaded], environment.get("LD_PRELOAD"))
    return environment


def working_directory(runtime: Path) -> Path:
    """Where to start tritonserver.

    Its Python stub ignores PYTHONPATH and searches the working directory before anything else. That must not be where
    the user happens to be; the source folder makes `penstock` importable from a checkout that is not installed.
    """
    source = Path(__file__).resolve().parents[1]
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return runtime if source in installed else source


def _joined(first: list[Path] | tuple[Path, ...], rest: str | None) -> str:
    return os.pathsep.join([*map(str, first), *([rest] if rest else [])])
