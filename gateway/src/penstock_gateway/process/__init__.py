"""The gateway as processes: the command, its checks, ports, certificate and log."""
