"""Measures the ladder and PyTorch over grids of workloads, and writes the files of results."""
