"""The router: text, the queue, placement, the decision to speculate, streams to clients, replay. No torch."""
