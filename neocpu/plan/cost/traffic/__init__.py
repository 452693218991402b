"""What would a plan send? Bytes of every call of a step, before it is made."""
