"""Planned jobs: batches packed from an index of sizes, each position found by arithmetic."""
