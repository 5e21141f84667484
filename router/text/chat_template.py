"""The model's chat template, which training renders, too."""

from paceline.chat_template import ChatTemplate

__all__ = ["ChatTemplate"]
