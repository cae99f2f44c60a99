"""Names and addresses of this machine, for servers that only this machine may reach, and servers in a thread."""

import html
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread


@dataclass(frozen=True)
class RunningServer:
    """A server in a thread of this process. It runs until `close`, the end of a `with` block, or the process ends."""

    subject: str  # what it shows or serves
    url: str
    about: str  # what the command prints
    thread: Thread
    stop: Callable[[], object]

    def close(self) -> None:
        """Stop the server after finishing open requests."""
        if self.thread.is_alive():
            self.stop()
            self.thread.join()

    def __enter__(self) -> "RunningServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __str__(self) -> str:
        return self.about

    def __repr__(self) -> str:
        return f"RunningServer({self.url!r}, {self.subject!r}, {'runs' if self.thread.is_alive() else 'closed'})"

    def _repr_html_(self) -> str:
        url = html.escape(self.url)
        state = f'<a href="{url}" target="_blank">{url}</a>' if self.thread.is_alive() else f"{url}, closed"
        return f"{html.escape(self.subject)}: {state}"


def url_of(host: str, port: int) -> str:
    """
    >>> url_of("127.0.0.1", 80), url_of("::1", 80)
    ('http://127.0.0.1:80', 'http://[::1]:80')
    """
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_own_host(header: str, own_name: str) -> bool:
    """Whether a Host header names this machine: an IP address, localhost, or the configured host. This blocks DNS
    rebinding, where another site points its own name here.

    >>> [is_own_host(host, "127.0.0.1") for host in ("127.0.0.1:80", "localhost", "[::1]:80", "evil.example", "")]
    [True, True, True, False, False]
    """
    name = re.sub(r":\d*$", "", header.strip().lower())
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name in ("localhost", own_name)
    return True
