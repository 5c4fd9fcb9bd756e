"""The edge: protobuf and gRPC stop here.

`opening` and `cursors` turn messages into calls on jobs and the store; `service` is the gRPC server
around them. A read of a node begins and ends in
`reads`; `read` sends its batches.
"""
