"""Model code that target and draft services share: configs, weights, layers, KV pages and the ragged step."""
