"""What --trace writes: its one reader."""
