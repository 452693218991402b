"""How does a student learn to build such a system herself, and who says whether she is right?"""
