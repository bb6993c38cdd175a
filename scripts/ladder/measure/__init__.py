"""What scripts/figures measures, and the file that it goes to."""
