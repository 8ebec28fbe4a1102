"""Speakers: a stream's audio goes to the model `speakers`, too, whose probabilities name the words' speakers."""
