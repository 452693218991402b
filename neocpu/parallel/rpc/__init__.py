"""How does a rank call a function of another rank, and differentiate through the call?"""
