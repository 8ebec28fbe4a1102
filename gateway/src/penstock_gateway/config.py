"""The options of the gateway: the fields of `Config` are their only declaration. Flags and variables follow from it."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from penstock_client.connection import Endpoint
from penstock_common.declaration import About, Listen, Options
from penstock_common.listening import LOOPBACK, is_loopback
from penstock_common.options import EndpointLongest, EndpointSilence, EndpointState, WindowSizes

DNS, FILE = "dns:", "file:"
"""Before a name with several addresses, and before the path of a file with a HOST:PORT in each line."""
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """Servers that serve the same model with the same context."""

    name: str
    """Name that clients write as the model; "" for the name that the servers give."""
    addresses: tuple[str, ...]
    """host:port of each server's gRPC port, dns:name:port or file:path."""


def check_address(address: str) -> str:
    """The address, if it is HOST:PORT; else ValueError."""
    try:
        if address.isprintable():  # also no byte order mark
            return Endpoint(address).url
    except ValueError:
        pass
    raise ValueError(f"{address!r} is not HOST:PORT")


def parse_replicas(text: str) -> tuple[ReplicaGroup, ...]:
    """Parses `HOST:PORT,...` or `NAME=HOST:PORT,...;NAME=...`, also with DNS names and files. ValueError names a wrong
    part.
    """
    groups = []
    for part in text.split(";"):
        name, _, listed = part.strip().rpartition("=")
        addresses = tuple(address.strip() for address in listed.split(",") if address.strip())
        for address in addresses:
            if not address.startswith(FILE):
                check_address(address.removeprefix(DNS))
        if not addresses:
            raise ValueError("no HOST:PORT")
        groups.append(ReplicaGroup(name.strip(), addresses))
    names = [group.name for group in groups]
    if len(set(names)) < len(names) or (len(names) > 1 and "" in names):
        raise ValueError("more than one group, and not each has a name of its own")
    return tuple(groups)


def _replicas(given: Any) -> Any:
    return parse_replicas(given) if isinstance(given, str) else given


def _names(given: Any) -> Any:
    return tuple(name.strip() for name in given.split(",") if name.strip()) if isinstance(given, str) else given


_Port = Annotated[int, Field(ge=0, le=_MAX_PORT), About("PORT")]
_File = Annotated[str | None, About("FILE", accepted="a file")]


class Config(Options):
    """The options of `penstock-gateway`: `read` takes flags, else variables, else the defaults."""

    model_config = ConfigDict(validate_default=True)  # a default may be text
    prefix: ClassVar[str] = "PENSTOCK_GATEWAY_"
    replaced: ClassVar[dict[str, str]] = {"host": "listen", "metrics_host": "metrics_listen"}

    replicas: Annotated[
        tuple[ReplicaGroup, ...],
        BeforeValidator(_replicas),
        About(
            "HOST:PORT,...",
            accepted="HOST:PORT,... or NAME=HOST:PORT,...;NAME=..., a name for each model; also dns:NAME:PORT "
            "or file:PATH",
        ),
    ] = Field(default="127.0.0.1:8001", description="gRPC ports of the servers")  # type: ignore[arg-type]
    http_port: _Port = Field(default=8080, description="port of HTTP and Realtime; 0: any free one")
    grpc_port: _Port = Field(default=50051, description="port of gRPC; 0: any free one")
    metrics_port: _Port = Field(default=8081, description="port of the metrics, without keys; 0: any free one")
    metrics_listen: Listen = Field(default=LOOPBACK, description="address of the metrics")
    listen: Listen = Field(
        default=LOOPBACK, description="address of the ports of clients; beyond loopback only with --keys"
    )
    keys: _File = Field(default=None, description="API keys and their quotas: lines NAME SHA256 MAX_STREAMS")
    secret: Annotated[str | None, About("FILE", unset="random", accepted="a file")] = Field(
        default=None, description="key that signs client secrets, at least 32 bytes; several gateways share it"
    )
    origins: Annotated[
        tuple[str, ...], BeforeValidator(_names), About("ORIGIN,...", accepted="names, or * for all")
    ] = Field(default="", description="other origins of web pages that may use the gateway")  # type: ignore[arg-type]
    tls_cert: _File = Field(default=None, description="PEM certificate chain; needs --tls-key")
    tls_key: _File = Field(default=None, description="PEM private key of the certificate")
    language: Annotated[str, About("NAME")] = Field(
        default="en-US", description="language of a model whose server names none"
    )
    endpoint_silence_ms: Annotated[EndpointSilence, About("MS")] = Field(
        default=800, description="default silence that ends a segment"
    )
    endpoint_state: Annotated[EndpointState | None, About("NAME", unset="the server's")] = Field(
        default=None, description="decoder at the end of a segment"
    )
    longest_segment_s: Annotated[EndpointLongest, About("S")] = Field(
        default=30,
        description="length after which any short pause ends a segment; 0: never, and live streams cannot move",
    )
    live_window: Annotated[
        Literal["live"] | WindowSizes | None,
        About(
            "NAME",
            unset="off",
            page="gateway_operations.md#offline-models",
            accepted="live (10,2,2), or LEFT,CHUNK,RIGHT in seconds",
        ),
    ] = Field(default=None, description="window for live audio to offline models")
    replay_mib: Annotated[int, Field(ge=1, le=65_536), About("MIB")] = Field(
        default=1024, description="memory for audio kept for moves, in MiB"
    )
    riva_boost_scale: Annotated[float, Field(ge=0, le=1), About("SCALE")] = Field(
        default=0.02, description="Riva: nats per unit of a phrase's boost, limited to 2 nats"
    )
    strict: bool = Field(default=False, description="reject request fields that have no effect here")
    mask_words: Annotated[
        str | None, About("FILE", unset="none", page="gateway.md#masked-words", accepted="a file")
    ] = Field(default=None, description="words that are masked for streams that ask")
    captions: bool = Field(default=True, description="serve the captions page; beyond loopback the default is 0")
    max_file_minutes: Annotated[float, Field(ge=1, le=1440), About("MINUTES")] = Field(
        default=240, description="longest uploaded recording"
    )
    max_upload_mb: Annotated[int, Field(ge=10, le=2000), About("MB")] = Field(
        default=200, description="largest upload or compressed audio of a gRPC stream, in MB"
    )
    timeout_s: Annotated[float, Field(ge=0.1, le=60), About("S")] = Field(
        default=2.5, description="time without a reply until a server is probed, and lost if that fails"
    )
    idle_seconds: Annotated[float, Field(ge=1, le=3600), About("S", page="gateway.md#pauses")] = Field(
        default=60, description="time without audio until a live stream frees its slot"
    )
    drain_seconds: Annotated[int, Field(ge=0, le=3600), About("S")] = Field(
        default=8, description="time after SIGTERM for live streams to end"
    )
    log_format: Annotated[Literal["text", "json"], About("NAME")] = Field(
        default="text", description="format of the log"
    )

    @property
    def serves_captions(self) -> bool:
        """The page is there: by default on loopback."""
        return self.captions and ("captions" in self.model_fields_set or is_loopback(self.listen))

    @property
    def max_upload_bytes(self) -> int:
        """One recording."""
        return self.max_upload_mb * 1_000_000

    @model_validator(mode="after")
    def _check(self) -> Self:
        """ValueError for options that contradict each other."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key need each other")
        if self.keys is None and not is_loopback(self.listen):
            raise ValueError(f"--listen {self.listen} needs --keys: without keys the gateway listens on loopback only")
        return self
