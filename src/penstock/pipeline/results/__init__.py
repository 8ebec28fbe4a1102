"""Results of a stream: text, words with times, truncation counters."""
