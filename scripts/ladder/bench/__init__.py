"""scripts/bench.py and scripts/peers.py: what is measured, and the file that it goes to."""
