"""Source and sink connectors behind two public interfaces; other packages can bring more (``registry``).

Part of the driver's zip: standard library only; a connector asks Spark through the session that it is given.
"""
