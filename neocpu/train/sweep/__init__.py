"""Which settings are best? Trials, each a run of its own."""
