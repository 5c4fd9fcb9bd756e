"""Planned jobs: batches are packed from an index of sizes, and found by arithmetic."""
