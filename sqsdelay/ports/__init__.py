"""What the use cases need from outside, as protocols; each method lists its errors."""
