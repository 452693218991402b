"""What does each kernel compute, in plain NumPy? Folders, files and names are the kernels'."""
