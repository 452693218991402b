"""Which numbers break kernels of the dense half?"""
