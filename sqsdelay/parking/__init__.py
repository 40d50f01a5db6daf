"""Parking: far-away messages wait in a store, where they can be listed, cancelled and moved."""
