"""Which numbers are canonical? Exact sums rounded once, elementary functions, random numbers."""
