"""Sockets, the event loop, handshakes and TLS between the processes of a job."""
