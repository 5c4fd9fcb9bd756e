"""Who makes a batch: tickets for workers, their answers, and what becomes of both."""
