"""The FlashInfer backend: its attention, and the Triton backend's other ops."""
