"""Which table goes into which memory?"""
