"""Greedy Transducer search by label-looping, and the hypotheses it extends."""
