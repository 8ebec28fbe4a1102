"""RNN-T, TDT and factorized transducers: what searches call (`interface`), and the networks behind it."""
