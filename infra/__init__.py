"""sqsdelay on AWS: CDK constructs, one per file."""
