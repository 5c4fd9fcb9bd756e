"""How a node is called: its address, the connection, and the calls, on threads of their own.

What takes a lock runs in `background_thread`, where no signal handler interrupts it. `control` has
the short calls, which are repeated until a deadline; `grpc_transport` and `connection` have the way
to the node, and `conversation` an open stream of messages.
"""
