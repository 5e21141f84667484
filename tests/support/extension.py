"""What a test needs that calls the C extension."""

import pytest

from kernels.round_tables import missing_tables

needs_extension = pytest.mark.skipif(missing_tables() is not None, reason="the C extension was not built")
