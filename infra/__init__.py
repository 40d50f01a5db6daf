"""The CDK app that deploys endpoints: what its context asks for, its stacks, a local AWS to try it on."""
