"""What every report of a measurement has in common: where and with what it was made, and tables."""
