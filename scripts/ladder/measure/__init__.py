"""Measures the ladder and PyTorch over grids of workloads, and writes the result files."""
