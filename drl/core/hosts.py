"""Names and addresses of this machine, for servers that nobody else may reach."""

import ipaddress
import re


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_own_host(header: str, own_name: str) -> bool:
    """Whether a Host header names this machine: by its address, as localhost, or by the name that was asked for. A page
    of another site that points its own name here (DNS rebinding) is thereby refused.

    >>> [is_own_host(host, "127.0.0.1") for host in ("127.0.0.1:80", "localhost", "[::1]:80", "evil.example", "")]
    [True, True, True, False, False]
    """
    name = re.sub(r":\d*$", "", header.strip().lower())
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name in ("localhost", own_name)
    return True
