"""The lessons' exercises: what scripts/exercise shows, builds and checks."""
