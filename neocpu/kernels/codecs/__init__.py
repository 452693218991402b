"""How are numbers written in few bits? Small floats, rows under a scale, MX blocks."""
