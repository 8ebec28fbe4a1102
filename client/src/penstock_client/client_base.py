"""What a client for threads and one for asyncio share. No I/O."""

import uuid
from collections.abc import Mapping

from penstock_client.endpoint import Endpoint
from penstock_client.errors import StreamClosedError, StreamId
from penstock_client.options import StreamOptions
from penstock_client.protocol import Parameter, check_stream_id


class ClientBase:
    """A client but for its connection."""

    def __init__(self, endpoint: Endpoint):
        self.url = endpoint.url
        self._timeout_s = endpoint.timeout_s
        self._is_closed = False

    def _new_stream_id(self, stream_id: StreamId | None) -> StreamId:
        """The id, or a unique one. ValueError for one that Triton does not take, StreamClosedError if we are closed."""
        stream_id = uuid.uuid4().hex if stream_id is None else check_stream_id(stream_id)
        if self._is_closed:
            raise StreamClosedError(stream_id, "the client is closed")
        return stream_id

    @staticmethod
    def _parameters(options: StreamOptions | None) -> Mapping[str, Parameter]:
        return options.parameters() if options else {}
