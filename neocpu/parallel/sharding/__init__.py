"""Which rank holds which rectangle of which table?"""
