"""How is a linear model fitted to a log, by the curvature of its loss?"""
