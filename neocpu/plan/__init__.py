"""Where should tables lie, and how long does a step take? On machines at hand or on paper."""
