"""Which names do other libraries' users know? FBGEMM's and TorchRec's, over neocpu's own embedding."""
