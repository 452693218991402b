"""Is an answer right? Within bounds, fairly rounded, and the same in every run."""
