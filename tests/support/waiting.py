"""How long tests wait for what must come."""

from __future__ import annotations

WAIT_S = 60.0  # only a test that fails waits so long: a busy machine takes many times what a quiet one does
