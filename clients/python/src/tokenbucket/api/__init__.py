"""Limiters and holds, for threads and for asyncio."""
