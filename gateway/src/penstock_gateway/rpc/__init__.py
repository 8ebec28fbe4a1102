"""The gRPC port: keys, messages and errors of its services, and the health service."""
