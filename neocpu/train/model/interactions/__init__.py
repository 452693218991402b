"""How do the vectors of a sample meet?"""
