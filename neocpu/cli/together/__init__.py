"""How do several models train at once from a command line?"""
