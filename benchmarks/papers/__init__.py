"""The tables of five papers, measured here in kind (docs/papers.md)."""
