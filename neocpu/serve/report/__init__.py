"""What is told of runs? One HTML page, and boards that follow a run."""
