"""How does a DLRM come from another program, or leave for it? As a state_dict with its names."""
