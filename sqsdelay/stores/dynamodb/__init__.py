"""The serverless store: a DynamoDB table."""
