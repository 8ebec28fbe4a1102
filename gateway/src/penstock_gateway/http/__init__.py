"""The HTTP port: requests, errors in the form of OpenAI, the protocol of its sockets."""
