"""The reference backend: plain torch on any device, the oracle for all others."""
