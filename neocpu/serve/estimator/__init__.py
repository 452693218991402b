"""How does one train from Python as with scikit-learn?"""
