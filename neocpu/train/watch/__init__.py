"""What is seen of a run? Metrics, times, traces, and the files of results."""
