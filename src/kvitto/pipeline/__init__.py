"""Jobs between queues, archives and tables. Each is a function of a Spark session, and a command of `kvitto pipeline`.

They need the client side and Spark only, never the broker.
"""
