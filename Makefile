protos-local:
	true
