"""The name of a caller that is known by its address alone."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address


def client_address(address: str) -> str:
    """Names a caller by its address; for IPv6 the /64, because one host can choose from all of it.

    >>> client_address("2001:db8::1"), client_address("::ffff:192.0.2.1")
    ('2001:db8::/64', '192.0.2.1')

    Anything else, such as several addresses or what a proxy wrote instead, stays as it is.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return str(ip)
    return str(ip.ipv4_mapped or IPv6Network((int(ip) >> 64 << 64, 64)))
