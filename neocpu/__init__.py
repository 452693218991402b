"""neocpu: the CPU reference implementation of Neo and ZionEX. Importing it loads neither Numba nor MPI."""

__version__ = "0.1.0"
