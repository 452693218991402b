"""Which operators of FBGEMM stand here? One file for each family, and their registration."""
