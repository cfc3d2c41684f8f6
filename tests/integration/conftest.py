from __future__ import annotations

from types import SimpleNamespace

import pytest

from support.backends import Backend
from support.shop import make_shop


@pytest.fixture
def shop(backend: Backend) -> SimpleNamespace:
    """The model, with its tables made in the backend."""
    shop = make_shop()
    backend.create(shop.metadata)
    return shop
