"""The command `penstock-client`."""
