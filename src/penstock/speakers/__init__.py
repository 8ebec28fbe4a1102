"""Speaker diarization: a streaming Sortformer whose state is a speaker cache of each stream in a slot."""
