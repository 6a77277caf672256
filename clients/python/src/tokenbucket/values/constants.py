"""The constants that `clients/conformance/rules.json` lists: all packages have the same."""

from __future__ import annotations

from decimal import Decimal

TIMEOUT_MS = 100
RETRY_EVERY_MS = 500
CONNECT_WITHIN_S = 1.0
# How often a call that waits its turn makes sure that the server is still there.
PULSE_S = 0.5
# A connection that was idle for longer is looked at before it is used.
IDLE_S = 0.1
# A cancelled hold may still be in a socket, and is settled once more.
AGAIN_S = 0.5
MOST_UNSETTLED = 1000
MOST_REDIRECTIONS = 16
# How often a call is sent again within the timeout while its slot is on two nodes.
TRIES_OF_A_SPLIT_SLOT = 10

# The longest wait of a call, and the longest ttl of a hold.
LONGEST_MS = 30 * 86_400_000
MOST_SHARE_BYTES = 128
LEAST_WEIGHT, MOST_WEIGHT = Decimal("0.001"), Decimal(1000)
