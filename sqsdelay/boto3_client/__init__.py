"""`unrestricted`: a boto3 client whose ``DelaySeconds`` has no limit."""
