"""Fault trials: what clients, networks and servers that fail do to streams. `trials.fault_trials` runs them."""
