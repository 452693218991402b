"""What do networks learn of plans? NeuroShard, AutoShard and DreamShard."""
