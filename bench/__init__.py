"""Measurements: the load generator of ``paceline bench``, and a command for each tuning constant."""
