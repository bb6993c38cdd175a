"""The one reader of the files that --trace writes."""
