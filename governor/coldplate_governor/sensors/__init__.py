"""Sensors, one file each behind one interface, and what makes their readings trustworthy."""
