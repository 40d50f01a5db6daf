"""`sqsdelay demo`: the whole way of a few messages, on a local AWS."""
