"""Who leads a run from its first step to its last? Trainer, measurements, recovery."""
