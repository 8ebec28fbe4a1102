"""Adaptation of a model to a domain, from text."""
