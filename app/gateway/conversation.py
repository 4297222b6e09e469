"""The conversation of one open session, in the store.

Translates between the store's records and the wire's items, and remembers what every
event needs: the settings, the model's card, the last item.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class Conversation:
    """See the module."""
