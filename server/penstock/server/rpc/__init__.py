"""The edge: protobuf and gRPC stop here.

`opening.py` and `cursor_calls.py` turn messages into calls on jobs and the store; `service.py` is
the gRPC server around them. A read of a node begins and ends in `reads.py`; `read.py` sends its
batches.
"""
