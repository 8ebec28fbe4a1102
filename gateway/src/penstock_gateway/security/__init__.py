"""Access to the gateway, and each key's share of it."""
