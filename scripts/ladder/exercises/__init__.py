"""Reads, builds and checks the lessons' exercises, for scripts/exercise."""
