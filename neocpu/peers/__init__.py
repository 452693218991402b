"""How does code written for FBGEMM or TorchRec call neocpu? By the names that it knows."""
