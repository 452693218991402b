"""How are tables looked up that stand on many ranks? As if they stood on one."""
