"""Fault trials: what servers and gateways that fail do to streams. `trials.fault_trials` runs them."""
