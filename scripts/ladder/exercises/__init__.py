"""Reads the exercises from lessons and rungs, builds and checks answers, for scripts/exercise."""
