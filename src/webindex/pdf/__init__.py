"""PDF documents: what the loader reads from one, once, and keeps in place of its bytes.

`reading` is the form in which that is kept, `extract` reads a document with pypdf in a process of
its own (`child`), and `process` starts such processes and ends them.
"""
