"""The simulated pair: two systemd containers that stand in for two Sparks."""
