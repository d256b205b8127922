"""Many connections to one port that never say a word, each replaced when it is closed, so many of them in a second.

    python -m tests.silent_strangers HOST PORT CONNECTIONS A_SECOND

It prints a line when it has begun as many, and goes on until it is killed.
"""

from __future__ import annotations

import resource
import selectors
import socket
import sys
import time


def main(host: str, port: int, count: int, rate: float) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    selector, begun = selectors.EpollSelector(), 0
    while True:
        while len(selector.get_map()) < count:
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex((host, port))
            selector.register(sock, selectors.EVENT_READ)
            begun += 1
            if begun == count:
                print("there", flush=True)
        closed = selector.select()
        for key, _ in closed:
            selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
        time.sleep(len(closed) / rate)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
