"""What is the exact answer of every embedding operator, and how far off may a kernel be?"""
