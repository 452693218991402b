"""How does a run go from a config to a digest?"""
