"""How is a linear model, or a perceptron, fitted to a log, by the curvature of its loss?"""
