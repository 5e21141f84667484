"""Runs the EAGLE-3 head, keeps the draft KV, grows proposal trees for many targets at once."""
