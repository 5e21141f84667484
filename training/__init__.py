"""Trains an EAGLE-3 head for a target: data that the target writes itself, training, evaluation, export."""
