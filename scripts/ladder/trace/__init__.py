"""What --trace writes: its one reader, and the replay in the time of a model."""
