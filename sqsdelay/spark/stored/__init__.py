"""Messages that wait in a store: read as a table, cancelled and moved by one."""
