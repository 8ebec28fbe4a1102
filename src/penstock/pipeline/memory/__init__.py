"""Memory of a server: on the device, in its processes, and per stream."""
