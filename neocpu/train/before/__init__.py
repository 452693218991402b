"""What happens before the first step? Data, plan, room, kernels, and what is taken over."""
