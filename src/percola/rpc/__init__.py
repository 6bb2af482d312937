"""§2.3, §2.4 Calls between the processes of a repository: frames on a TCP connection, with TLS."""
