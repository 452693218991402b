"""Which log can anybody make, of any size, with the best possible score known?"""
