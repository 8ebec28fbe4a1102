"""The one way from a protocol to a replica: events, live streams, segments, replicas, admission."""
