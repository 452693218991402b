"""What is a converted log? A plain HDF5 file of columns, written and read in bounded memory."""
