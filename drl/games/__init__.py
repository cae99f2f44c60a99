"""Our own environments: MovieRec, the Iterated Prisoner's Dilemma, and probes with known values."""
