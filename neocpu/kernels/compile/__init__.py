"""How do kernels become machine code once, and on how many threads do they run?"""
