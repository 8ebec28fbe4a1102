"""The servers of one group: which of them answer, and which has the most room."""

import asyncio
import logging
import time
from collections.abc import Sequence

from penstock_client import (
    AsyncClient,
    BatchedClient,
    BatchedStream,
    ClientError,
    ConnectionOptions,
    ServerInfo,
    StreamOptions,
)
from penstock_gateway.config import ReplicaGroup
from penstock_gateway.security.limits import MAX_UNANSWERED_S
from penstock_gateway.stream.live_stream import ModelGroup

log = logging.getLogger(__name__)
PROBE_S = 2.0
_PROBE_TIMEOUT_S = 5.0
_MAX_FAILED_PROBES = 2
"""A server that is slow is not down, as long as its streams are answered."""
_FULL_S = 0.5
"""Time for which a replica that rejected a stream gets no other one."""
_NO_RETRY = ConnectionOptions(connect_retry_s=0)


class Replica:
    """One server."""

    def __init__(self, address: str, timeout_s: float):
        self.address = address
        self.client = BatchedClient(
            address, timeout_s=timeout_s, connection_options=_NO_RETRY, max_unanswered_s=MAX_UNANSWERED_S
        )
        self._probe_client = AsyncClient(
            address, timeout_s=_PROBE_TIMEOUT_S, model="asr_batch", connection_options=_NO_RETRY
        )
        self.information: ServerInfo | None = None
        """None while it does not answer, or serves another model than its group."""
        self.live = 0
        """Streams of this process."""
        self._closed_until_s = 0.0
        self._failed_probes = 0
        self._mismatch = ""

    @property
    def load(self) -> float:
        """The part of its streams that this process uses, 0 .. 1 or more."""
        return self.live / self.information.max_streams if self.information else 1.0

    @property
    def has_room(self) -> bool:
        """True if another stream may start."""
        return self.information is not None and self.load < 1 and time.monotonic() >= self._closed_until_s

    async def start(self, options: StreamOptions) -> BatchedStream:
        """A stream that it has accepted. Raises ClientError."""
        upstream = await self.client.open_stream(options)
        try:
            await upstream.accepted()
        except BaseException:
            upstream.cancel()
            raise
        return upstream

    def release(self) -> None:
        """One of its live streams is over."""
        self.live -= 1

    def note_full(self) -> None:
        """It has rejected a stream."""
        self._closed_until_s = time.monotonic() + _FULL_S

    def note_down(self, reason: str) -> None:
        """It does not answer; the next probe decides."""
        if self.information is not None:
            log.warning("replica %s is down: %s", self.address, reason)
        self.information = None

    def note_up(self, information: ServerInfo) -> None:
        """It answers, with the model of its group."""
        if self.information is None:
            log.info("replica %s is up: %s", self.address, information.model)
        self.information, self._mismatch = information, ""

    def note_mismatch(self, reason: str) -> None:
        """It answers, with another model than its group."""
        if reason != self._mismatch:
            log.warning("replica %s gets no streams: %s", self.address, reason)
        self.information, self._mismatch = None, reason

    async def probe(self) -> ServerInfo | None:
        """Queries its model and limits: its last answer while few probes have failed, then None."""
        try:
            information = await self._probe_client.server_info()
        except ClientError as error:
            self._failed_probes += 1
            if self._failed_probes >= _MAX_FAILED_PROBES or not self.live:
                self.note_down(error.text)
            return self.information
        self._failed_probes = 0
        return information

    async def close(self) -> None:
        """Ends its streams and connections."""
        await asyncio.gather(self.client.close(), self._probe_client.close())


class Group:
    """Servers with the same model and context. `run` keeps what is known of them fresh."""

    def __init__(self, group: ReplicaGroup, timeout_s: float):
        self._name = group.name
        self.replicas = [Replica(address, timeout_s) for address in group.addresses]
        self._model: ModelGroup | None = None

    @property
    def name(self) -> str:
        """Model name that clients use; "" until a replica has answered, if the configuration gives none."""
        return self._model.name if self._model is not None else self._name

    @property
    def model(self) -> ModelGroup | None:
        """Model of the group; None until a replica has answered. It is kept while none answers."""
        return self._model

    @property
    def is_up(self) -> bool:
        """True if a replica answers."""
        return any(replica.information is not None for replica in self.replicas)

    def candidates(self) -> Sequence[Replica]:
        """Replicas for a new stream, that with the most room first."""
        return sorted((replica for replica in self.replicas if replica.has_room), key=lambda replica: replica.load)

    async def probe(self) -> None:
        """Probes all replicas. One with another model or context than the group takes no streams."""
        found = await asyncio.gather(*(replica.probe() for replica in self.replicas))
        answers = [
            (replica, information, _model_group(self._name, information))
            for replica, information in zip(self.replicas, found, strict=True)
            if information is not None
        ]
        if not answers:
            return
        wanted = self._model = self._choose([model for _, _, model in answers])
        for replica, information, model in answers:
            if _is_alike(model, wanted):
                replica.note_up(information)
            else:
                replica.note_mismatch(f"serves {model.model} {model.context}, not {wanted.model} {wanted.context}")

    def _choose(self, models: Sequence[ModelGroup]) -> ModelGroup:
        """Model of the group: the same as before while a replica does, else the first of these models."""
        last = self._model
        return next((model for model in models if last is not None and _is_alike(model, last)), models[0])

    async def close(self) -> None:
        """Closes its replicas."""
        await asyncio.gather(*(replica.close() for replica in self.replicas))


def _is_alike(one: ModelGroup, other: ModelGroup) -> bool:
    return (one.model, one.context) == (other.model, other.context)


def _model_group(name: str, information: ServerInfo) -> ModelGroup:
    return ModelGroup(
        name=name or information.model,
        model=information.model,
        sample_rate_hz=information.sample_rate_hz,
        context=information.context,
        chunk_ms=information.chunk_ms,
        languages=information.languages,
        decoders=information.decoders,
        max_beam_size=information.max_beam_size,
        max_boosted_phrases=information.max_boosted_phrases,
        parameters=information.parameters,
        alphabet=information.alphabet,
    )
