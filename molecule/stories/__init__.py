"""What the molecule scenarios share: driving plays, and judging the simulated pair from outside."""
