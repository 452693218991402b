"""What is the exact answer of every embedding operator, and how far may a correct kernel be from it?"""
