"""What callers pass and get: limits, decisions, errors."""
