"""How do bytes get from rank to rank? By MPI, threads, or memory that both see."""
