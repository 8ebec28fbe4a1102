"""Archives: more audio than one machine transcribes, on Ray or Slurm (docs/archives.md)."""
