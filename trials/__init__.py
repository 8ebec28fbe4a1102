"""Trials: faults, attacks and long loads against real servers, each with its figures. `make trials NAME=soak`."""
