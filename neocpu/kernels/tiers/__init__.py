"""Which rows are in fast memory, and how do they move? Cache, eviction, slots, records."""
