"""Which plan takes the fewest seconds?"""
