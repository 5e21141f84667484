"""What router, draft and target share: the wire contract and its value types. No torch."""

__version__ = "0.1.0"
