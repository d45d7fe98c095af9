"""What is known of single sources and sinks, behind two public interfaces; anybody can bring more (``registry``).

Travels to the driver. Standard library only: what a connector asks of Spark it asks of the session that it is handed.
"""
