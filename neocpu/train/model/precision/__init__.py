"""In which numbers are the products of the dense half made?"""
