"""Planned jobs: batches packed from an index of sizes, in windows, at any position by arithmetic."""
