"""How is a linear model or a small MLP fitted to a log, by the curvature of its loss?"""
