"""Parts of the client, the gateway and the server that talk to no server."""
