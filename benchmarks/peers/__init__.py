"""The contestants of `benchmarks/peers.py`: one script each, all speaking through a folder (see `job`)."""
