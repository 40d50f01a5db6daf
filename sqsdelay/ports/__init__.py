"""What the use cases need from outside, as protocols; each method names its errors."""
